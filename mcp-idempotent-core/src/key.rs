//! The client's idempotency key.

use std::fmt;

/// A client's token for one intended operation: 1 to 255 bytes of visible ASCII (SEP-3182).
///
/// `Debug` shows at most 8 characters, so a whole key never reaches a log.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Box<str>);

/// The longest key that is accepted, in bytes.
pub const MAX_KEY_LENGTH: usize = 255;

/// How many characters of a key operators and logs may see.
pub const VISIBLE_PREFIX: usize = 8;

impl IdempotencyKey {
    /// Checks a key and wraps it.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] when the key is empty, longer than [`MAX_KEY_LENGTH`] bytes, or has a byte
    /// outside `0x21..=0x7e` (a space and every control character among them).
    pub fn new(key: impl Into<String>) -> Result<Self, InvalidKey> {
        let key = key.into();
        let reason = if key.is_empty() {
            Reason::Empty
        } else if key.len() > MAX_KEY_LENGTH {
            Reason::TooLong
        } else if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            Reason::NotVisibleAscii
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

    /// At most the first [`VISIBLE_PREFIX`] characters, for logs and operators.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0[..self.0.len().min(VISIBLE_PREFIX)]
    }
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
    NotVisibleAscii,
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
            Reason::Empty => "the idempotency key is empty; send 1 to 255 visible ASCII characters",
            Reason::TooLong => {
                "the idempotency key is longer than 255 bytes; send 1 to 255 visible ASCII characters"
            }
            Reason::NotVisibleAscii => {
                "the idempotency key has a character that is not visible ASCII; send 1 to 255 visible ASCII characters"
            }
            Reason::NotAString => {
                "the idempotency key is not a JSON string; send 1 to 255 visible ASCII characters"
            }
        })
    }
}

impl std::error::Error for InvalidKey {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_1_to_255_visible_ascii_bytes_are_taken() {
        for key in ["a", "~", "!", &"k".repeat(255)] {
            assert_eq!(IdempotencyKey::new(key).expect("valid").as_str(), key);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for key in [
            "",
            " ",
            "a b",
            "a\0",
            "a\n",
            "ключ",
            "é",
            "\u{7f}",
            &"k".repeat(256),
        ] {
            assert!(IdempotencyKey::new(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn debug_shows_at_most_eight_characters() {
        let key = IdempotencyKey::new("0123456789abcdef").expect("valid");
        assert_eq!(format!("{key:?}"), "IdempotencyKey(01234567…)");
    }
}
