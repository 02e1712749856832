//! What SQLite's result codes mean to a store.

use sqlx::error::DatabaseError;

use crate::store::{StoreError, StoreErrorKind};

// https://www.sqlite.org/rescode.html; the low byte of an extended code is its primary code.
const ERROR: i32 = 1;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READONLY: i32 = 8;
const IOERR: i32 = 10;
const FULL: i32 = 13;
const CANTOPEN: i32 = 14;
const AUTH: i32 = 23;
const NOTADB: i32 = 26;

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error
        .as_database_error()
        .and_then(DatabaseError::code)?
        .parse()
        .ok()?;
    Some(code & 0xff)
}

/// Whether another connection holds a lock that this statement needs. Nothing happened then, and
/// the same statement may succeed later. Covers `SQLITE_BUSY_RECOVERY`, `_SNAPSHOT` and `_TIMEOUT`
/// too.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

/// Whether SQLite rejected the statement itself (`SQLITE_ERROR`).
pub(super) fn is_sql_error(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(ERROR)
}

/// Whether the connection may not write, or the file cannot be written.
pub(super) fn is_read_only(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(READONLY)
}

/// Whether a commit may still have happened in spite of this error.
pub(super) fn leaves_commit_open(error: &sqlx::Error) -> bool {
    match primary_code(error) {
        Some(code) => code == IOERR,
        // This error is not from SQLite: the connection's thread is gone.
        None => true,
    }
}

/// Classifies an error that left nothing behind.
pub(super) fn store_error(doing: &str, error: sqlx::Error) -> StoreError {
    if is_busy(&error) {
        return busy("the write lock").with_source(error);
    }
    let kind = match (&error, primary_code(&error)) {
        (_, Some(IOERR | FULL | CANTOPEN)) => StoreErrorKind::Unavailable,
        // Our own statements are fixed, so an SQL error means that a table is not as we made it.
        (_, Some(ERROR | READONLY | AUTH | NOTADB)) | (sqlx::Error::Configuration(_), None) => {
            StoreErrorKind::Misconfigured
        }
        (
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Io(_),
            None,
        ) => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    };
    StoreError::new(kind, format!("SQLite store: {doing}")).with_source(error)
}

/// The bound was reached while other callers had their turn.
pub(super) fn busy(waiting_for: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Busy,
        format!("SQLite store: waited too long for {waiting_for}; nothing was done"),
    )
}
