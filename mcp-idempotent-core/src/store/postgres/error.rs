//! What a database error means. It is read from lists of SQLSTATEs, never from message texts.

use std::borrow::Cow;

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};

use crate::store::{StoreError, StoreErrorKind};

/// Errors that our own statements raise on purpose, because sqlx returns no rows there. They mean
/// this only in a batch that has nothing but our statements.
///
/// A code is used for more than one answer, so the step that raises it counts too:
///
/// | SQLSTATE | step | meaning | read in |
/// | --- | --- | --- | --- |
/// | `22012` | `Primary` | the server is a standby | `tries.rs`, `verify.rs` |
/// | `22012` | `LockKey`, `LockKeyUnlessSerializable`, `ClaimLease` | this exact call is running | `tries.rs`, `fate.rs`, `verify.rs` |
/// | `22012` | `TryLock` | the transaction in question is still open | `tries.rs`, `verify.rs` |
/// | `2201E` | `LockKey`, `LockKeyUnlessSerializable`, `ClaimLease` | another call with this key is running | `tries.rs`, `fate.rs`, `verify.rs` |
/// | `2201E` | `CompleteHere` for the call's own lease | the lease is lost | `fate.rs` |
/// | `2201E` | `CompleteHere` for the guard of a call | the guard is lost: with a lease, as if that were lost; without one, another call is at work | `fate.rs` |
/// | `2201F` | `Seen` | there is a record, expired or not | `tries.rs`, `fate.rs` |
/// | `2201G` | `OpenUnclaimed`, `LockKey`, `LockKeyUnlessSerializable` | transactions begin read-only | [`is_read_only`] |
/// | `22011` | `LockKeyUnlessSerializable` | the transaction is serializable | `tries.rs` |
///
/// On a pool's connection it is not known which step of an opening batch was stopped. There the
/// code has to be enough, so no two steps of such a batch use one code for different answers.
pub(super) mod answer {
    /// Division by zero: the lock of this exact call is taken.
    pub(in crate::store::postgres) const NO: &str = "22012";
    /// Logarithm of zero: the lock of the key is taken.
    pub(in crate::store::postgres) const KEY_BUSY: &str = "2201E";
    /// The same error when a lease is completed: no row has its token any more.
    pub(in crate::store::postgres) const FENCED: &str = KEY_BUSY;
    /// Square root of a negative number: there is a record.
    pub(in crate::store::postgres) const SEEN: &str = "2201F";
    /// A histogram of no buckets: transactions begin read-only, as on every standby.
    pub(in crate::store::postgres) const BEGINS_READ_ONLY: &str = "2201G";
    /// Substring of negative length: the transaction is serializable.
    pub(in crate::store::postgres) const SERIALIZABLE: &str = "22011";
}

pub(super) const IN_FAILED_TRANSACTION: &str = "25P02";
pub(super) const NO_TRANSACTION: &str = "25P01";
const NO_SAVEPOINT: &str = "3B001";
pub(super) const UNKNOWN_PREPARED_NAME: &str = "26000";
pub(super) const DUPLICATE_PREPARED_NAME: &str = "42P05";
pub(super) const READ_ONLY: &str = "25006";
/// Among others: a prepared statement whose table has changed ("cached plan must not change result
/// type").
pub(super) const NOT_SUPPORTED: &str = "0A000";
const UNIQUE_VIOLATION: &str = "23505";

/// The SQLSTATE, if the database answered at all.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(DatabaseError::code)
}

/// Whether the server takes no writes. Another connection may lead to the primary.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    matches!(
        sqlstate(error).as_deref(),
        Some(READ_ONLY | answer::BEGINS_READ_ONLY)
    )
}

/// Whether a savepoint did not exist.
pub(super) fn is_about_savepoint(error: &sqlx::Error) -> bool {
    matches!(
        sqlstate(error).as_deref(),
        Some(NO_SAVEPOINT | NO_TRANSACTION)
    )
}

/// Whether our table's primary key refused a row.
pub(super) fn is_our_unique_violation(error: &sqlx::Error, schema: &str) -> bool {
    error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
        .is_some_and(|error| {
            error.code() == UNIQUE_VIOLATION
                && error.constraint() == Some("mcp_idempotent_records_pkey")
                && error.table() == Some("records")
                && error.schema() == Some(schema)
        })
}

/// Whether the database refused to serialise the transaction, or broke a deadlock.
pub(super) fn is_serialization_failure(error: &sqlx::Error) -> bool {
    kind(error) == StoreErrorKind::Conflict
}

/// Whether the session is gone. The connection is then useless.
pub(super) fn is_connection_lost(error: &sqlx::Error) -> bool {
    match sqlstate(error) {
        Some(code) => is_end_of_session(&code),
        None => matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::WorkerCrashed
        ),
    }
}

/// Shutdown, crash, dropped database, timeouts that end the session, connection exceptions.
fn is_end_of_session(code: &str) -> bool {
    matches!(
        code,
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04"
    ) || code.starts_with("08")
}

/// What kind of problem an error is.
pub(super) fn kind(error: &sqlx::Error) -> StoreErrorKind {
    if let Some(code) = sqlstate(error) {
        return match &*code {
            "40001" | "40P01" => StoreErrorKind::Conflict,
            // Lock timeout, statement cancelled.
            "55P03" | "57014" => StoreErrorKind::Busy,
            IN_FAILED_TRANSACTION => StoreErrorKind::Aborted,
            // Missing tables, schemas, functions, columns or rights.
            "42P01" | "3F000" | "42883" | "42703" | "42501" | "3D000" | NOT_SUPPORTED => {
                StoreErrorKind::Misconfigured
            }
            code if code.starts_with("28") => StoreErrorKind::Misconfigured,
            // The server takes no writes for now.
            READ_ONLY | answer::BEGINS_READ_ONLY => StoreErrorKind::Unavailable,
            // Insufficient resources (such as too many connections), system errors.
            code if is_end_of_session(code) || code.starts_with("53") || code.starts_with("58") => {
                StoreErrorKind::Unavailable
            }
            _ => StoreErrorKind::Other,
        };
    }
    match error {
        sqlx::Error::Configuration(_) => StoreErrorKind::Misconfigured,
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

/// An error from one of our own statements, with the remedy if there is one.
pub(super) fn store_error(doing: &str, schema: &str, error: sqlx::Error) -> StoreError {
    let remedy = match sqlstate(&error).as_deref() {
        Some("42P01" | "3F000" | "42703") => format!(
            "; the tables in schema {schema} are missing, or from another version: run `PostgresStore::migrate`, or apply `PostgresStore::migration_sql` by hand"
        ),
        Some("42501") => format!(
            "; the database role lacks rights in schema {schema}, or a row-level security policy refuses its records: see the grants in the documentation of `PostgresStore`"
        ),
        Some(READ_ONLY | answer::BEGINS_READ_ONLY) => {
            "; the server is a standby or read-only. The connection is closed, and the next one may lead to the primary".to_owned()
        }
        _ => String::new(),
    };
    StoreError::new(kind(&error), format!("Postgres store: {doing}{remedy}")).with_source(error)
}
