//! Values written into the text of a statement: hexadecimal digits of our own bytes, integers, and
//! text in which nothing needs quoting.

use std::{borrow::Cow, fmt::Write as _};

/// A value for a parameter of one of our statements.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument<'a> {
    Integer(i64),
    /// One `bytea` of all these bytes, in order.
    Bytes(&'a [&'a [u8]]),
    /// Text that [`plain`] made.
    Text(&'a str),
    Null,
    /// A literal as it is.
    Literal(&'a str),
}

impl Argument<'_> {
    pub(super) fn push_to(self, sql: &mut String) {
        match self {
            Self::Integer(value) => {
                let _ = write!(sql, "{value}");
            }
            Self::Bytes(parts) => {
                sql.push_str("E'\\\\x");
                for part in parts {
                    push_hex(sql, part);
                }
                sql.push('\'');
            }
            Self::Text(value) => {
                debug_assert!(
                    value.bytes().all(is_plain),
                    "only plain text goes into a statement"
                );
                sql.push('\'');
                sql.push_str(value);
                sql.push('\'');
            }
            Self::Null => sql.push_str("NULL"),
            Self::Literal(value) => sql.push_str(value),
        }
    }

    fn into_literal(self) -> String {
        let mut literal = String::new();
        self.push_to(&mut literal);
        literal
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push_hex(&mut text, bytes);
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    const AT_ONCE: usize = 64;
    text.reserve(bytes.len() * 2);
    let mut digits = [0; AT_ONCE * 2];
    for chunk in bytes.chunks(AT_ONCE) {
        for (pair, byte) in digits.chunks_exact_mut(2).zip(chunk) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text.extend(std::str::from_utf8(&digits[..chunk.len() * 2]));
    }
}

/// Reads what `encode(…, 'hex')` wrote. A `bytea` as it is would come in the format that the session
/// chose with `bytea_output`.
pub(super) fn unhex(text: &str) -> Result<Vec<u8>, sqlx::Error> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(sqlx::Error::Decode("no hexadecimal digit".into())),
    };
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

/// A `bytea` literal, whatever `standard_conforming_strings` says.
pub(super) fn bytes(bytes: &[u8]) -> String {
    Argument::Bytes(&[bytes]).into_literal()
}

/// A `bytea` literal, or NULL.
pub(super) fn bytes_or_null(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "NULL".to_owned(), bytes)
}

/// A `text` literal of text that [`plain`] made: nothing in it needs quoting.
pub(super) fn text(value: &str) -> String {
    Argument::Text(value).into_literal()
}

/// A `text` literal, or NULL.
pub(super) fn text_or_null(value: Option<&str>) -> String {
    value.map_or_else(|| "NULL".to_owned(), text)
}

/// A `text` literal of any text without U+0000, whatever `standard_conforming_strings` says and
/// whatever is in it.
pub(super) fn any_text(value: &str) -> String {
    format!(
        "pg_catalog.convert_from({}, 'UTF8')",
        bytes(value.as_bytes())
    )
}

/// At most `limit` characters of `value`, with `?` for every one that would need quoting or that
/// an encoding of the database might lack.
pub(super) fn plain(value: &str, limit: usize) -> Cow<'_, str> {
    if value.len() <= limit && value.bytes().all(is_plain) {
        return Cow::Borrowed(value);
    }
    value
        .chars()
        .take(limit)
        .map(|character| match u8::try_from(character) {
            Ok(byte) if is_plain(byte) => character,
            _ => '?',
        })
        .collect()
}

fn is_plain(byte: u8) -> bool {
    (byte.is_ascii_graphic() || byte == b' ') && !matches!(byte, b'\'' | b'\\' | b'$')
}

/// Microseconds for an `interval`, at most a hundred years.
pub(super) fn interval(duration: std::time::Duration) -> i64 {
    const LIMIT: i64 = 100 * 366 * 24 * 60 * 60 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(LIMIT, |micros| micros.min(LIMIT))
}
