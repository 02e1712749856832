//! Our statements: their text, their server-side prepared names, their literals.

use std::{fmt::Write as _, sync::Arc};

use sha2::{Digest, Sha256};

use super::schema::SchemaName;

mod lease;

pub(super) use self::lease::{in_doubt_until, is_in_doubt};

/// Which statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Open,
    OpenUnclaimed,
    Seen,
    LookUp,
    Expire,
    Check,
    Finish,
    Doubt,
    ExpireUnkept,
    Held,
    Claim,
    TakeOver,
    Renew,
    Complete,
    CompleteHere,
    Release,
    Keep,
    Abandon,
}

/// A statement with numbered parameters.
#[derive(Debug)]
struct Statement {
    name: Name,
    suffix: &'static str,
    parameters: &'static [&'static str],
    text: String,
}

/// All statements of one store.
#[derive(Debug)]
pub(super) struct Statements {
    all: Vec<Statement>,
    /// Starts every prepared name: a hash of schema and texts, so that two stores on one
    /// connection, or two versions behind one pooler, never run each other's statements.
    prefix: String,
    finish_bound: Arc<str>,
}

/// Microseconds since the Unix epoch of a `timestamptz`.
pub(super) fn micros(expression: &str) -> String {
    format!("(extract(epoch FROM {expression}) * 1000000)::bigint")
}

/// The one reading of the clock that a statement uses; OFFSET 0 keeps it one reading.
pub(super) const CLOCK: &str = "(SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS clock";

/// Whether the per-call value that `open` set is still there: an error if not. Whoever ends the
/// transaction removes it.
fn still_ours(mark: &str) -> String {
    format!(
        "1 / (pg_catalog.current_setting('mcp_idempotent.call', true) IS NOT DISTINCT FROM {mark})::int"
    )
}

impl Statements {
    pub(super) fn new(schema: &SchemaName) -> Self {
        let records = format!("{}.records", schema.quoted());
        let set_up = "pg_catalog.set_config('mcp_idempotent.call', $1, true), \
             pg_catalog.set_config('mcp_idempotent.committed', $1, false), \
             pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true)";
        // Whether a record is past its end; `$2`: whether its tombstone counts. What is left of a
        // free key is nothing to a look-up, and in the way of nobody.
        let is_past = |now: &str| lease::is_past(now, "true");
        let completed = micros("completed_at");
        let statement = |name, suffix, parameters, text| Statement {
            name,
            suffix,
            parameters,
            text,
        };
        // The moment of a finishing statement is when it reached the server: `now()` is the start
        // of the transaction, and a record would be expired when a slow handler commits it.
        let moment = "pg_catalog.statement_timestamp()";
        let finish = format!(
            "INSERT INTO {records} (id, fingerprint, state, token, attempts, tool, key_prefix, \
             response, created_at, completed_at, expires_at, purge_at) \
             VALUES ($1, $2, 1, $3::bigint, {ours}, $4, $5, $6, pg_catalog.now(), {moment}, \
             {moment} + $7 * interval '1 microsecond', \
             {moment} + ($7 + $8) * interval '1 microsecond') RETURNING {completed}",
            ours = still_ours("$3"),
        );
        const FINISH: &[&str] = &[
            "bytea", "bytea", "text", "text", "text", "bytea", "bigint", "bigint",
        ];
        let mut all = vec![
            // The lock of this call (id and fingerprint) first, then the lock of the key. Both are
            // taken in an earlier statement than any look-up, whose snapshot is then newer.
            statement(
                Name::Open,
                "open",
                &["text", "text", "bigint", "bigint", "boolean"],
                format!(
                    "SELECT {set_up}, \
                     1 / pg_catalog.pg_try_advisory_xact_lock($3)::int, \
                     pg_catalog.ln(pg_catalog.pg_try_advisory_xact_lock($4)::int::float8), \
                     pg_catalog.substr('', 1, -($5 AND pg_catalog.current_setting('transaction_isolation') = 'serializable')::int)"
                ),
            ),
            statement(
                // The lock is the transaction's own: while it is held, its commit may be to come.
                Name::OpenUnclaimed,
                "open_unclaimed",
                &["text", "text", "bigint"],
                format!("SELECT {set_up}, pg_catalog.pg_advisory_xact_lock($3)"),
            ),
            // Any record, expired or not: what it means is read outside the transaction.
            statement(
                Name::Seen,
                "seen",
                &["bytea"],
                format!("SELECT pg_catalog.sqrt(-1::float8 - state) FROM {records} WHERE id = $1"),
            ),
            statement(
                Name::LookUp,
                "look_up",
                &["bytea", "boolean"],
                format!(
                    "SELECT pg_catalog.encode(fingerprint, 'hex'), \
                     CASE WHEN state = 0 AND lease_until <= clock.now THEN 2 \
                          WHEN state = 1 AND expires_at <= clock.now THEN 3 \
                          ELSE state END::int, \
                     {remaining}, pg_catalog.encode(response, 'hex'), {moment}, token, attempts \
                     FROM {records}, {CLOCK} \
                     WHERE id = $1 AND NOT {past}",
                    past = is_past("clock.now"),
                    remaining = micros("(lease_until - clock.now)"),
                    moment = micros("(CASE state WHEN 0 THEN lease_until ELSE completed_at END)"),
                ),
            ),
            // An expired record is removed before anybody claims its key, and finishing is a plain
            // INSERT. ON CONFLICT DO UPDATE in its place would let a second racer update no row,
            // without an error, and commit its effect without a record.
            statement(
                Name::Expire,
                "expire",
                &["bytea", "boolean"],
                format!(
                    "DELETE FROM {records} WHERE id = $1 AND {}",
                    is_past("pg_catalog.clock_timestamp()")
                ),
            ),
            statement(
                Name::Check,
                "check",
                &["text"],
                format!(
                    "SELECT {ours}, {now}",
                    ours = still_ours("$1"),
                    now = micros("pg_catalog.clock_timestamp()")
                ),
            ),
            statement(Name::Finish, "finish", FINISH, finish.clone()),
            statement(
                Name::Doubt,
                "doubt",
                &["bytea", "bytea", "bigint", "text", "text", "bigint"],
                format!(
                    "INSERT INTO {records} (id, fingerprint, state, token, attempts, tool, \
                     key_prefix, in_doubt_retention, created_at, completed_at, expires_at) \
                     SELECT $1, $2, 2, $3, 1, $4, $5, $6, clock.now, clock.now, \
                     clock.now + $6 * interval '1 microsecond' FROM {CLOCK} \
                     ON CONFLICT (id) DO NOTHING"
                ),
            ),
        ];
        all.extend(lease::statements(schema));
        let mut hash = Sha256::new();
        for statement in &all {
            hash.update(&statement.text);
        }
        Self {
            all,
            prefix: format!("mcp_idempotent_{}", hex(&hash.finalize()[..8])),
            finish_bound: finish.into(),
        }
    }

    /// `finish`, for binding a large result.
    pub(super) fn finish_bound(&self) -> Arc<str> {
        Arc::clone(&self.finish_bound)
    }

    /// Prepares all of them for the session.
    pub(super) fn prepare(&self) -> String {
        let mut batch = String::new();
        for statement in &self.all {
            let _ = write!(
                batch,
                "PREPARE {}_{}({}) AS {};",
                self.prefix,
                statement.suffix,
                statement.parameters.join(","),
                statement.text
            );
        }
        batch
    }

    /// A call of one, by its prepared name or in full.
    pub(super) fn call(&self, prepared: bool, name: Name, arguments: &[String]) -> String {
        let Some(statement) = self.all.iter().find(|statement| statement.name == name) else {
            unreachable!("`Statements::new` makes every statement")
        };
        debug_assert_eq!(statement.parameters.len(), arguments.len(), "{name:?}");
        if prepared {
            return format!(
                "EXECUTE {}_{}({});",
                self.prefix,
                statement.suffix,
                arguments.join(",")
            );
        }
        let mut text = statement.text.clone();
        for (index, (argument, parameter)) in
            arguments.iter().zip(statement.parameters).enumerate().rev()
        {
            text = text.replace(
                &format!("${}", index + 1),
                &format!("({argument}::{parameter})"),
            );
        }
        text.push(';');
        text
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
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
    format!("E'\\\\x{}'", hex(bytes))
}

/// A `bytea` literal, or NULL.
pub(super) fn bytes_or_null(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "NULL".to_owned(), bytes)
}

/// A `text` literal of text that [`plain`] made: nothing in it needs quoting.
pub(super) fn text(value: &str) -> String {
    debug_assert!(
        value.bytes().all(is_plain),
        "only plain text goes into a statement"
    );
    format!("'{value}'")
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
pub(super) fn plain(value: &str, limit: usize) -> String {
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
