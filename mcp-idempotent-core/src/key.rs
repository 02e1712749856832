//! The client's idempotency key.

use std::fmt;

/// A client's token for one intended operation: any text of 1 to 255 bytes of UTF-8 without control
/// characters. It is opaque, as SEP-3182 has it: compared byte by byte, never normalised.
///
/// `Debug` shows at most 8 characters, so a whole key never reaches a log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Box<str>);

/// The longest key that is accepted, in bytes.
pub const MAX_KEY_LENGTH: usize = 255;

/// How many characters of a key operators and logs may see.
pub const VISIBLE_PREFIX: usize = 8;

impl IdempotencyKey {
    /// What a key begins with whose caller confirms a new intent, where a tool
    /// [does not allow](crate::policy::RotatedKeys) equal calls under different keys. It means nothing
    /// elsewhere.
    pub const NEW_INTENT: &'static str = "new-intent:";

    /// Checks a key and wraps it.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when the key is empty, longer than [`MAX_KEY_LENGTH`] bytes, or has a control
    /// character (U+0000 to U+001F, U+007F to U+009F).
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidKey> {
        let key = key.into();
        let reason = if key.is_empty() {
            Reason::Empty
        } else if key.len() > MAX_KEY_LENGTH {
            Reason::TooLong
        } else if key.chars().any(char::is_control) {
            Reason::ControlCharacter
        } else {
            return Ok(Self(key.into_boxed_str()));
        };
        Err(InvalidKey { reason })
    }

    /// The whole key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it begins with [`NEW_INTENT`](Self::NEW_INTENT).
    #[must_use]
    pub fn is_new_intent(&self) -> bool {
        self.0.starts_with(Self::NEW_INTENT)
    }

    /// At most the first [`VISIBLE_PREFIX`] characters, for logs and operators.
    #[must_use]
    pub fn prefix(&self) -> &str {
        visible_prefix(&self.0)
    }
}

/// At most the first [`VISIBLE_PREFIX`] characters.
pub(crate) fn visible_prefix(key: &str) -> &str {
    let end = key.char_indices().nth(VISIBLE_PREFIX);
    &key[..end.map_or(key.len(), |(end, _)| end)]
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({}…)", self.prefix())
    }
}

/// Why a key was refused. The message never repeats the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidKey {
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reason {
    Empty,
    TooLong,
    ControlCharacter,
    NotAString,
}

impl InvalidKey {
    /// The value found where a key belongs is not a JSON string.
    #[must_use]
    pub fn not_a_string() -> Self {
        Self {
            reason: Reason::NotAString,
        }
    }
}

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            Reason::Empty => "the idempotency key is empty; send 1 to 255 bytes of text",
            Reason::TooLong => {
                "the idempotency key is longer than 255 bytes; send 1 to 255 bytes of text"
            }
            Reason::ControlCharacter => {
                "the idempotency key has a control character; send 1 to 255 bytes of text without any"
            }
            Reason::NotAString => {
                "the idempotency key is not a JSON string; send 1 to 255 bytes of text"
            }
        })
    }
}

impl std::error::Error for InvalidKey {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_1_to_255_bytes_are_taken_as_they_are() {
        for key in [
            "a",
            "~",
            " ",
            "a b",
            "ключ",
            "é",
            "e\u{301}",
            "\u{200b}",
            &"k".repeat(255),
        ] {
            assert_eq!(IdempotencyKey::new(key).expect("valid").as_str(), key);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for key in [
            "",
            "a\0",
            "a\n",
            "\u{7f}",
            "\u{85}",
            &"k".repeat(256),
            &"é".repeat(128),
        ] {
            assert!(IdempotencyKey::new(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn debug_shows_at_most_eight_characters() {
        let key = IdempotencyKey::new("0123456789abcdef").expect("valid");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(01234567…)");
        let key = IdempotencyKey::new("ключ для оплаты").expect("valid");
        assert_eq!(key.prefix(), "ключ для");
    }
}
