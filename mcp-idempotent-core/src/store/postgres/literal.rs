//! Values that are written into a statement's text: bytes, integers, and text in which nothing
//! needs quoting. The texts are ASCII, so no encoding and no setting of the session changes them.

use std::{borrow::Cow, fmt::Write as _, time::Duration};

use sqlx::{ValueRef as _, postgres::PgValueRef};

use crate::{
    key::VISIBLE_PREFIX,
    policy::OnExpired,
    store::{Claim, Completion, Lease},
};

/// How many characters are kept of the name of a tool, an application or a scope.
pub(super) const NAME_LENGTH: usize = 255;

/// A value for a parameter of one of our statements.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument<'a> {
    Integer(i64),
    Boolean(bool),
    Bytes(&'a [u8]),
    /// The text as [`plain`] makes it, with at most this many characters.
    Plain(&'a str, usize),
    /// What an operator sees of a call, as [`labels`] writes it.
    Labels(&'a Claim),
    /// Any text without U+0000.
    AnyText(&'a str),
    Null,
}

impl<'a> Argument<'a> {
    /// Microseconds.
    pub(super) fn interval(duration: Duration) -> Self {
        Self::Integer(interval(duration))
    }

    /// The record id, and whether a tombstone counts as a record.
    pub(super) fn record(claim: &'a Claim) -> [Self; 2] {
        [
            Self::Bytes(claim.id.as_bytes()),
            Self::Boolean(claim.on_expired == OnExpired::Refuse),
        ]
    }

    /// The record id and the token of an attempt.
    pub(super) fn attempt(lease: &'a Lease) -> [Self; 2] {
        [Self::Bytes(lease.id.as_bytes()), Self::Integer(lease.token)]
    }

    /// The result, and how long it and its tombstone are kept.
    pub(super) fn completion(completion: &'a Completion) -> [Self; 3] {
        [
            completion
                .response
                .as_deref()
                .map_or(Self::Null, Self::Bytes),
            Self::interval(completion.retention),
            Self::interval(completion.tombstone),
        ]
    }

    /// Writes the value for a parameter of this type. As a bare number, a small integer would be an
    /// `int`, whose cast costs more than the quotes.
    pub(super) fn push_for(self, parameter: &str, sql: &mut String) {
        match self {
            Self::Integer(value) if parameter != "int" && i32::try_from(value).is_ok() => {
                let _ = write!(sql, "'{value}'");
            }
            argument => argument.push_to(sql),
        }
    }

    pub(super) fn push_to(self, sql: &mut String) {
        match self {
            Self::Integer(value) => {
                let _ = write!(sql, "{value}");
            }
            Self::Boolean(value) => sql.push_str(if value { "true" } else { "false" }),
            Self::Bytes(bytes) => push_bytes(sql, bytes),
            Self::Plain(value, limit) => {
                sql.push('\'');
                sql.push_str(&plain(value, limit));
                sql.push('\'');
            }
            Self::Labels(claim) => {
                sql.push('\'');
                push_labels(sql, claim);
                sql.push('\'');
            }
            Self::AnyText(value) => {
                sql.push_str("pg_catalog.convert_from(");
                Self::Bytes(value.as_bytes()).push_to(sql);
                sql.push_str(", 'UTF8')");
            }
            Self::Null => sql.push_str("NULL"),
        }
    }
}

/// Writes bytes in the shorter of the two formats that Postgres reads. JSON is nearly all ASCII,
/// which takes half as long in the escape format, here and on the server. An `E''` literal is right
/// with either value of `standard_conforming_strings`.
fn push_bytes(sql: &mut String, bytes: &[u8]) {
    sql.push_str("E'");
    let length = |&byte: &u8| LENGTHS[usize::from(byte)];
    let escaped: usize = bytes.iter().map(|byte| usize::from(length(byte))).sum();
    if escaped < bytes.len() * 2 {
        sql.reserve(escaped);
        let alike = |one: &u8, next: &u8| (length(one) == 1) == (length(next) == 1);
        for part in bytes.chunk_by(alike) {
            if length(&part[0]) == 1 {
                sql.extend(std::str::from_utf8(part));
            } else {
                part.iter().for_each(|&byte| push_escaped(sql, byte));
            }
        }
    } else {
        sql.push_str(r"\\x");
        push_hex(sql, bytes);
    }
    sql.push('\'');
}

fn push_escaped(sql: &mut String, byte: u8) {
    match byte {
        // The literal halves the backslashes, and so does the format.
        b'\\' => sql.push_str(r"\\\\"),
        b'\'' => sql.push_str("''"),
        _ => {
            let _ = write!(sql, r"\\{byte:03o}");
        }
    }
}

/// How many characters each byte takes in the escape format.
const LENGTHS: [u8; 256] = {
    let mut lengths = [5; 256];
    let mut byte = b' ';
    while byte <= b'~' {
        lengths[byte as usize] = match byte {
            b'\\' => 4,
            b'\'' => 2,
            // It could be taken for a parameter where a statement is written in full.
            b'$' => 5,
            _ => 1,
        };
        byte += 1;
    }
    lengths
};

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

/// Reads a `bytea` that came as text. `None` if it is not in the hexadecimal format: the session chose
/// another one with `bytea_output`. `Some(None)` is NULL.
pub(super) fn bytes_of(value: PgValueRef<'_>) -> Option<Option<Vec<u8>>> {
    if value.is_null() {
        return Some(None);
    }
    let digits = value.as_str().ok()?.strip_prefix(r"\x")?;
    Some(Some(unhex(digits).ok()?))
}

/// Reads what `encode(…, 'hex')` wrote.
pub(super) fn unhex(text: &str) -> Result<Vec<u8>, sqlx::Error> {
    const NOT_A_DIGIT: u8 = 0xff;
    const VALUES: [u8; 256] = {
        let mut values = [NOT_A_DIGIT; 256];
        let mut value = 0;
        while value < 16 {
            values[b"0123456789abcdef"[value as usize] as usize] = value;
            value += 1;
        }
        values
    };
    let mut digits = 0;
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes = pairs.map(|pair| {
        let [high, low] = [pair[0], pair[1]].map(|digit| VALUES[usize::from(digit)]);
        digits |= high | low;
        high << 4 | low
    });
    let bytes = bytes.collect();
    if digits == NOT_A_DIGIT {
        return Err(sqlx::Error::Decode("not a hexadecimal digit".into()));
    }
    Ok(bytes)
}

/// At most `limit` characters of `value`. A `?` replaces each one that would need quoting, or that
/// the database's encoding might lack.
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

/// Tool, application, scope and the beginning of the key, one line each. A line is empty if its
/// value is not known or may not be kept. No label has a line break, because each is [`plain`].
fn push_labels(text: &mut String, claim: &Claim) {
    let prefix = claim.key_prefix.as_deref().unwrap_or_default();
    text.push_str(&plain(&claim.call.tool, NAME_LENGTH));
    for (label, limit) in [
        (claim.application().unwrap_or_default(), NAME_LENGTH),
        (claim.scope().unwrap_or_default(), NAME_LENGTH),
        (prefix, VISIBLE_PREFIX),
    ] {
        text.push('\n');
        text.push_str(&plain(label, limit));
    }
}

/// The same, as a bound value.
pub(super) fn labels(claim: &Claim) -> String {
    let mut text = String::new();
    push_labels(&mut text, claim);
    text
}

/// A duration in microseconds, for an `interval`. At most a hundred years.
pub(super) fn interval(duration: Duration) -> i64 {
    const LIMIT: i64 = 100 * 366 * 24 * 60 * 60 * 1_000_000;
    i64::try_from(duration.as_micros()).map_or(LIMIT, |micros| micros.min(LIMIT))
}
