//! Our statements: their text and their server-side prepared names.
//!
//! Every call of ours waits for what the server does with them, so each is as cheap as it can be.
//! What counts there (measured in instructions): each EXECUTE, each parameter, each column of a
//! result and of a target list has its price; a condition has less than a column.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

pub(super) use super::literal::{
    Argument, any_text, bytes, bytes_or_null, hex, interval, plain, text, text_or_null, unhex,
};
use super::schema::SchemaName;

mod lease;

pub(super) use self::lease::{in_doubt_until, is_in_doubt};

/// Which statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    Open,
    OpenUnlessSerializable,
    OpenUnclaimed,
    Seen,
    LookUp,
    Expire,
    Check,
    Finish,
    FinishUnpacked,
    Doubt,
    Settle,
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
    doubt_bound: Arc<str>,
    look_up: Arc<str>,
}

/// Microseconds since the Unix epoch of a `timestamptz`.
pub(super) fn micros(expression: &str) -> String {
    format!("(extract(epoch FROM {expression}) * 1000000)::bigint")
}

/// The one reading of the clock that a statement uses; OFFSET 0 keeps it one reading.
pub(super) const CLOCK: &str = "(SELECT pg_catalog.clock_timestamp() AS now OFFSET 0) AS clock";

/// The moment at which a look-up's message reached the server: one reading for the whole
/// statement, also where it ends a long transaction.
const NOW: &str = "pg_catalog.statement_timestamp()";

/// The finished record. Its values are expressions, the mark a parameter.
fn finish(records: &str, [id, fingerprint, response]: [&str; 3], rest: [&str; 5]) -> String {
    let [mark, tool, prefix, retention, tombstone] = rest;
    // The moment of a finishing statement is when it reached the server: `now()` is the start
    // of the transaction, and a record would be expired when a slow handler commits it.
    let moment = "pg_catalog.statement_timestamp()";
    format!(
        "INSERT INTO {records} (id, fingerprint, state, token, attempts, tool, key_prefix, \
         response, created_at, completed_at, expires_at, purge_at) \
         VALUES ({id}, {fingerprint}, 1, {mark}, 1, {tool}, {prefix}, {response}, \
         pg_catalog.now(), {moment}, {moment} + {retention} * interval '1 microsecond', \
         {moment} + ({retention} + {tombstone}) * interval '1 microsecond') \
         RETURNING {completed}",
        completed = micros("completed_at"),
    )
}

/// A record that is in doubt: that its call ended is all that is known.
fn doubt(records: &str, created: &str, rest: [&str; 4]) -> String {
    let [response, tool, prefix, retention] = rest;
    format!(
        "INSERT INTO {records} AS r (id, fingerprint, state, token, attempts, tool, key_prefix, \
         response, in_doubt_retention, created_at, completed_at, expires_at) \
         SELECT $1, $2, 2, $3, 1, {tool}, {prefix}, {response}, {retention}, {created}, \
         clock.now, clock.now + {retention} * interval '1 microsecond' FROM {CLOCK}"
    )
}

impl Statements {
    pub(super) fn new(schema: &SchemaName, idle_timeout: Duration) -> Self {
        let records = format!("{}.records", schema.quoted());
        let idle_timeout = i32::try_from(idle_timeout.as_millis()).unwrap_or(i32::MAX);
        // A condition, not a column: it costs the server less.
        let set_up = format!(
            "pg_catalog.set_config('idle_in_transaction_session_timeout', '{idle_timeout}', true) \
             IS NOT NULL"
        );
        // CASE, because conditions may be tried in any order.
        let locked = "CASE WHEN 1 / pg_catalog.pg_try_advisory_xact_lock($1)::int = 1 \
             THEN pg_catalog.ln(pg_catalog.pg_try_advisory_xact_lock($2)::int::float8) = 0 END";
        let not_serializable = "pg_catalog.substr('', 1, \
             -(pg_catalog.current_setting('transaction_isolation') = 'serializable')::int) \
             IS NOT NULL";
        // Whether a record is past its end; `$2`: whether its tombstone counts. What is left of a
        // free key is nothing to a look-up, and in the way of nobody.
        let is_past = |now: &str| lease::is_past(now, "true");
        let moment = "(CASE state WHEN 0 THEN lease_until ELSE completed_at END)";
        let look_up = |[fingerprint, remaining, response, completed]: [&str; 4], rest: &str| {
            format!(
                "SELECT {fingerprint}, \
                 CASE WHEN state = 0 AND lease_until <= {NOW} THEN 2 \
                      WHEN state = 1 AND expires_at <= {NOW} THEN 3 \
                      ELSE state END::int, \
                 {remaining}, {response}, {completed}, token, attempts{rest} \
                 FROM {records} WHERE id = $1 AND NOT {past}",
                past = is_past(NOW),
            )
        };
        let statement = |name, suffix, parameters, text| Statement {
            name,
            suffix,
            parameters,
            text,
        };
        let mut all = vec![
            // The lock of this call (id and fingerprint) first, then the lock of the key. Both are
            // taken in an earlier statement than any look-up, whose snapshot is then newer.
            statement(
                Name::Open,
                "open",
                &["bigint", "bigint"],
                format!("SELECT WHERE {set_up} AND {locked}"),
            ),
            statement(
                Name::OpenUnlessSerializable,
                "open_unless_serializable",
                &["bigint", "bigint"],
                format!("SELECT WHERE {set_up} AND {locked} AND {not_serializable}"),
            ),
            statement(
                // The lock is the transaction's own: while it is held, its commit may be to come.
                Name::OpenUnclaimed,
                "open_unclaimed",
                &["bigint"],
                format!("SELECT pg_catalog.pg_advisory_xact_lock($1) WHERE {set_up}"),
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
                // Bytes in the session's own format might be anything.
                look_up(
                    [
                        "pg_catalog.encode(fingerprint, 'hex')",
                        &micros(&format!("(lease_until - {NOW})")),
                        "pg_catalog.encode(response, 'hex')",
                        &micros(moment),
                    ],
                    "",
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
            // What an unrecorded transaction can be asked after by, and the moment.
            statement(
                Name::Check,
                "check",
                &[],
                format!(
                    "SELECT pg_catalog.txid_current_if_assigned(), {}",
                    micros("pg_catalog.clock_timestamp()")
                ),
            ),
            // Id, fingerprint and response in one parameter.
            statement(
                Name::Finish,
                "finish",
                &["bytea", "bigint", "text", "text", "bigint", "bigint"],
                finish(
                    &records,
                    [
                        "pg_catalog.substr($1, 1, 32)",
                        "pg_catalog.substr($1, 33, 33)",
                        "pg_catalog.substr($1, 66)",
                    ],
                    ["$2", "$3", "$4", "$5", "$6"],
                ),
            ),
            statement(
                Name::FinishUnpacked,
                "finish_unpacked",
                &[
                    "bytea", "bytea", "bytea", "bigint", "text", "text", "bigint", "bigint",
                ],
                finish(&records, ["$1", "$2", "$3"], ["$4", "$5", "$6", "$7", "$8"]),
            ),
            statement(
                Name::Doubt,
                "doubt",
                &["bytea", "bytea", "bigint", "text", "text", "bigint"],
                // Where a large result was written after the handler had committed, it goes.
                format!(
                    "{} ON CONFLICT (id) DO UPDATE SET response = NULL \
                     WHERE r.token = excluded.token",
                    doubt(&records, "clock.now", ["NULL::bytea", "$4", "$5", "$6"])
                ),
            ),
            // Makes the record of a large result, which was written as one in doubt, a finished
            // one. By its place, because a search would take part in others' refusals to serialise.
            statement(
                Name::Settle,
                "settle",
                &["tid", "bigint", "bigint", "bigint"],
                format!(
                    "UPDATE {records} SET state = 1, in_doubt_retention = NULL, \
                     completed_at = {NOW}, expires_at = {NOW} + $3 * interval '1 microsecond', \
                     purge_at = {NOW} + ($3 + $4) * interval '1 microsecond' \
                     WHERE ctid OPERATOR(pg_catalog.=) $1 AND token = $2 RETURNING {}",
                    micros("completed_at")
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
            doubt_bound: format!(
                "{} RETURNING ctid::text",
                doubt(
                    &records,
                    "pg_catalog.now()",
                    ["$4::bytea", "$5", "$6", "$7"]
                )
            )
            .into(),
            look_up: look_up(
                ["fingerprint", "lease_until", "response", moment],
                &format!(", {NOW}"),
            )
            .into(),
        }
    }

    /// A record in doubt that holds a result, for binding a large one; `settle` makes it a finished
    /// one. It returns its place.
    pub(super) fn doubt_bound(&self) -> Arc<str> {
        Arc::clone(&self.doubt_bound)
    }

    /// `look_up` with bytes and moments as they are, for results in the binary format.
    pub(super) fn look_up_bound(&self) -> Arc<str> {
        Arc::clone(&self.look_up)
    }

    /// Prepares all of them for the session.
    pub(super) fn prepare(&self) -> String {
        let mut batch = String::new();
        for statement in &self.all {
            let _ = write!(
                batch,
                "PREPARE {}_{}{} AS {};",
                self.prefix,
                statement.suffix,
                in_brackets(&statement.parameters.join(",")),
                statement.text
            );
        }
        batch
    }

    /// A call of one, by its prepared name or in full.
    pub(super) fn call(&self, prepared: bool, name: Name, arguments: &[String]) -> String {
        let arguments: Vec<_> = arguments
            .iter()
            .map(|argument| Argument::Literal(argument))
            .collect();
        let mut sql = String::new();
        self.push(&mut sql, prepared, name, &arguments);
        sql
    }

    /// Adds a call of one, by its prepared name or in full.
    pub(super) fn push(
        &self,
        sql: &mut String,
        prepared: bool,
        name: Name,
        arguments: &[Argument<'_>],
    ) {
        let Some(statement) = self.all.iter().find(|statement| statement.name == name) else {
            unreachable!("`Statements::new` makes every statement")
        };
        debug_assert_eq!(statement.parameters.len(), arguments.len(), "{name:?}");
        if prepared {
            for part in ["EXECUTE ", &self.prefix, "_", statement.suffix] {
                sql.push_str(part);
            }
            for (index, argument) in arguments.iter().enumerate() {
                sql.push(if index == 0 { '(' } else { ',' });
                argument.push_to(sql);
            }
            sql.push_str(if arguments.is_empty() { ";" } else { ");" });
            return;
        }
        let mut text = statement.text.clone();
        for (index, (argument, parameter)) in
            arguments.iter().zip(statement.parameters).enumerate().rev()
        {
            let mut value = String::from("(");
            argument.push_to(&mut value);
            let _ = write!(value, "::{parameter})");
            text = text.replace(&format!("${}", index + 1), &value);
        }
        sql.push_str(&text);
        sql.push(';');
    }
}

/// Nothing for no parameters: Postgres takes no empty list.
fn in_brackets(list: &str) -> String {
    if list.is_empty() {
        return String::new();
    }
    format!("({list})")
}
