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

/// Whether somebody else holds a lock that this statement needs: nothing happened, and the same
/// statement may pass later. Covers `SQLITE_BUSY_RECOVERY`, `_SNAPSHOT` and `_TIMEOUT` too.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

/// Whether the statement made no sense where it was run.
pub(super) fn is_sql_error(error: &sqlx::Error) -> bool {
    primary_code(error) == Some(ERROR)
}

/// Whether this error leaves open what became of a commit.
pub(super) fn leaves_commit_open(error: &sqlx::Error) -> bool {
    match primary_code(error) {
        Some(code) => code == IOERR,
        // Not SQLite's word: the thread of the connection is gone.
        None => true,
    }
}

/// Classes an error that left nothing behind.
pub(super) fn store_error(doing: &str, error: sqlx::Error) -> StoreError {
    if is_busy(&error) {
        return busy("the write lock").with_source(error);
    }
    let kind = match (&error, primary_code(&error)) {
        (_, Some(IOERR | FULL | CANTOPEN)) => StoreErrorKind::Unavailable,
        // Our own statements are fixed, so an SQL error is a table that is not as we made it.
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

/// The bound was reached while others were being served.
pub(super) fn busy(waiting_for: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Busy,
        format!("SQLite store: waited for {waiting_for} up to the bound, nothing was done"),
    )
}
