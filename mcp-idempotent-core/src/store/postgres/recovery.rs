//! What became of a commit whose answer was lost.

use std::time::Duration;

use sqlx::{Row, postgres::PgRow};
use tokio::time::{Instant, sleep};

use super::{
    Mark, PostgresStore,
    begin::{Obstacle, roll_back},
    connection::{Leased, run},
    error,
    record::{Stored, moment},
    statement::{bytes, micros},
    stopped::{Stopped, TransactionId},
};
use crate::{
    error::CommitOutcome,
    record::RecordState,
    store::{Claim, Ended, Lease, StoreError, StoreErrorKind},
};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a transaction was to commit, and how it is asked after.
#[derive(Clone, Copy)]
pub(super) enum Sought<'a> {
    /// A record with this mark, under the key's lock.
    Record(&'a Claim, Mark),
    /// A lease's completion, under the lock of the transaction with this mark, which it holds from
    /// its beginning.
    Completion(&'a Lease, Mark),
    /// No record; what the server says of the transaction itself.
    Nothing,
}

/// What one look showed.
enum Look {
    /// How it ended; nothing was committed where nothing tells.
    Settled(Option<Ended>),
    /// It cannot be found out.
    Never(&'static str),
    /// The lock is held, the server is no primary, or it could not be asked.
    NotYet(String),
}

impl PostgresStore {
    /// On the primary, obtains the lock (the session that was lost holds it until its commit is
    /// visible or rolled back) and, in a later statement, looks at what was to be written. It does
    /// so on `kept`, where the connection still answers, then on new ones. With the lock in hand it
    /// does not matter which session that is.
    pub(super) async fn find_out(
        &self,
        sought: Sought<'_>,
        stopped: Stopped,
        mut kept: Option<Leased>,
    ) -> Ended {
        let deadline = Instant::now() + self.inner.recovery_timeout;
        let mut pause = FIRST_PAUSE;
        let transaction = stopped.transaction();
        let cause = stopped.into_error();
        loop {
            let look = self.look_once(sought, transaction, kept.take());
            let (why, is_last) = match tokio::time::timeout_at(deadline, look).await {
                Ok(Look::Settled(Some(ended))) => return ended,
                Ok(Look::Settled(None)) => {
                    let doing = if error::is_connection_lost(&cause) {
                        "the connection was lost at the commit, and nothing was committed"
                    } else {
                        "the database refused to commit"
                    };
                    return Ended::Aborted(self.error(doing, cause));
                }
                Ok(Look::NotYet(why)) => (why, false),
                Ok(Look::Never(why)) => (why.to_owned(), true),
                Err(_) => ("the database did not answer".to_owned(), true),
            };
            if is_last || Instant::now() + pause >= deadline {
                let error = StoreError::new(
                    StoreErrorKind::Unavailable,
                    format!(
                        "the connection was lost at the commit, and what became of it could not be found out: {why}"
                    ),
                );
                return Ended::Unknown(
                    error
                        .with_source(cause)
                        .with_outcome(CommitOutcome::Unknown),
                );
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn look_once(
        &self,
        sought: Sought<'_>,
        transaction: TransactionId,
        kept: Option<Leased>,
    ) -> Look {
        // How many statements were completed when the server turned out to be a standby.
        const PRIMARY_CHECK: usize = 2;
        let look = match (sought, transaction) {
            (Sought::Record(claim, _), _) => {
                [self.open(claim, false), self.look_up_call(claim)].concat()
            }
            (Sought::Completion(lease, mark), _) => format!(
                "SELECT 1 / pg_catalog.pg_try_advisory_xact_lock({})::int; \
                 SELECT token, state::int, {} FROM {}.records WHERE id = {};",
                self.inner.locks.of_transaction(mark),
                micros("completed_at"),
                self.inner.schema.quoted(),
                bytes(lease.id.as_bytes()),
            ),
            (Sought::Nothing, TransactionId::Is(id)) => {
                format!("SELECT 1; SELECT pg_catalog.txid_status({id});")
            }
            (Sought::Nothing, TransactionId::None) => return Look::Settled(None),
            (Sought::Nothing, TransactionId::Unheard) => {
                return Look::Never("it left no record");
            }
        };
        let (mut connection, end) = match kept {
            Some(mut kept) => match roll_back(&mut kept).await {
                Ok(()) => (kept, "ROLLBACK AND CHAIN;"),
                Err(error) => return Look::NotYet(error.to_string()),
            },
            None => match self.connection().await {
                Ok(connection) => (connection, "ROLLBACK;"),
                Err(error) => return Look::NotYet(error.to_string()),
            },
        };
        let batch = format!(
            "{}SELECT 1 / (NOT pg_catalog.pg_is_in_recovery())::int;{look}{end}",
            self.short_transaction(),
        );
        let answer = run(&mut connection, batch).await;
        let reached = answer.affected.len();
        // Rows: the check, the locks, and the record where there is one.
        let row = answer.rows.get(2);
        let Some(error) = answer.error else {
            connection.release_as_it_is();
            let look = match sought {
                Sought::Record(_, mark) => recorded(row, mark),
                Sought::Completion(lease, _) => completed(row, lease),
                Sought::Nothing => status(row),
            };
            return look.unwrap_or_else(|error| Look::NotYet(error.to_string()));
        };
        let why = if reached == PRIMARY_CHECK {
            "the server that answers is a standby".to_owned()
        } else {
            match Obstacle::of(error) {
                Obstacle::SameCallRuns | Obstacle::KeyIsHeld => {
                    "the lost session still holds its lock".to_owned()
                }
                Obstacle::NotPrepared => {
                    if roll_back(&mut connection).await.is_ok()
                        && self.prepare(&mut connection, false).await.is_ok()
                    {
                        connection.release();
                    }
                    return Look::NotYet("the statements had to be prepared".to_owned());
                }
                Obstacle::CannotSerialize(error)
                | Obstacle::ConnectionLost(error)
                | Obstacle::Other(error) => error.to_string(),
                Obstacle::RecordExists | Obstacle::IsSerializable => {
                    "the database answered in an unexpected way".to_owned()
                }
            }
        };
        if roll_back(&mut connection).await.is_ok() {
            connection.release();
        }
        Look::NotYet(why)
    }
}

/// The record decides: this transaction's own, or that of another call.
fn recorded(row: Option<&PgRow>, mark: Mark) -> Result<Look, sqlx::Error> {
    let Some(row) = row else {
        return Ok(Look::Settled(None));
    };
    let stored = Stored::read(row)?;
    Ok(Look::Settled(Some(match stored.record.state {
        RecordState::Completed { at, .. } if stored.token == mark.0 => Ended::AsAsked(at),
        _ => Ended::Lost(stored.record),
    })))
}

/// Token and state decide: nobody else completes a record under this token.
fn completed(row: Option<&PgRow>, lease: &Lease) -> Result<Look, sqlx::Error> {
    const COMPLETED: i32 = 1;
    let Some(row) = row else {
        // Completed and swept since, or fenced: who knows.
        return Ok(Look::NotYet("the record is gone".to_owned()));
    };
    if row.try_get::<i64, _>(0)? != lease.token {
        return Ok(Look::Settled(Some(Ended::Fenced)));
    }
    Ok(Look::Settled(match row.try_get::<i32, _>(1)? {
        COMPLETED => Some(Ended::AsAsked(moment(row)?)),
        _ => None,
    }))
}

/// That it was rolled back may be believed. That a transaction with this number was committed may
/// be said by a server that took over, of a transaction of its own.
fn status(row: Option<&PgRow>) -> Result<Look, sqlx::Error> {
    let row = row.ok_or(sqlx::Error::RowNotFound)?;
    Ok(match row.try_get::<Option<&str>, _>(0)? {
        Some("aborted") => Look::Settled(None),
        Some("in progress") => Look::NotYet("it is still running".to_owned()),
        _ => Look::Never("it left no record"),
    })
}
