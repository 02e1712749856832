//! What became of a commit whose answer was lost.

use std::time::Duration;

use sqlx::{Row, postgres::PgRow};
use tokio::time::{Instant, sleep};

use super::{
    Mark, PostgresStore,
    begin::{Obstacle, roll_back},
    connection::run,
    record::{Stored, moment},
    statement::{bytes, micros},
};
use crate::{
    error::CommitOutcome,
    record::RecordState,
    store::{Claim, Ended, Lease, StoreError, StoreErrorKind},
};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a lost transaction was to commit.
#[derive(Clone, Copy)]
enum Lost<'a> {
    /// A record of its own, under the key's lock.
    Record(&'a Claim),
    /// A lease's completion, under the transaction's lock.
    Completion(&'a Lease),
}

/// What one look on a new connection showed.
enum Look {
    /// How it ended; nothing was committed where nothing tells.
    Settled(Option<Ended>),
    /// The lock is held, the server is no primary, or it could not be asked.
    NotYet(String),
}

impl PostgresStore {
    /// On a new connection to the primary, obtains the key's lock (the lost session holds it until
    /// its commit is visible or rolled back) and, in a later statement, looks the record up.
    pub(super) async fn resolve(&self, claim: &Claim, mark: Mark, cause: sqlx::Error) -> Ended {
        self.find_out(Lost::Record(claim), mark, cause).await
    }

    /// As [`resolve`](Self::resolve), for a transaction that was begun without a claim: its own
    /// lock, which it holds from its beginning, says whether it may still commit.
    pub(super) async fn resolve_lease(
        &self,
        lease: &Lease,
        mark: Mark,
        cause: sqlx::Error,
    ) -> Ended {
        self.find_out(Lost::Completion(lease), mark, cause).await
    }

    async fn find_out(&self, lost: Lost<'_>, mark: Mark, cause: sqlx::Error) -> Ended {
        let deadline = Instant::now() + self.inner.recovery_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let look = tokio::time::timeout_at(deadline, self.look_once(lost, mark)).await;
            let why = match look {
                Ok(Look::Settled(Some(ended))) => return ended,
                Ok(Look::Settled(None)) => {
                    return Ended::Aborted(self.error(
                        "the connection was lost at the commit, and nothing was committed",
                        cause,
                    ));
                }
                Ok(Look::NotYet(why)) => why,
                Err(_) => "the database did not answer".to_owned(),
            };
            if Instant::now() + pause >= deadline {
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

    async fn look_once(&self, lost: Lost<'_>, mark: Mark) -> Look {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return Look::NotYet(error.to_string()),
        };
        // How many statements were completed when the server turned out to be a standby.
        const PRIMARY_CHECK: usize = 2;
        let look = match lost {
            Lost::Record(claim) => [
                self.open(Mark::new(), claim, false),
                self.look_up_call(claim),
            ]
            .concat(),
            Lost::Completion(lease) => format!(
                "SELECT 1 / pg_catalog.pg_try_advisory_xact_lock({})::int; \
                 SELECT token, state::int, {} FROM {}.records WHERE id = {};",
                self.inner.locks.of_transaction(mark),
                micros("completed_at"),
                self.inner.schema.quoted(),
                bytes(lease.id.as_bytes()),
            ),
        };
        let batch = format!(
            "{}SELECT 1 / (NOT pg_catalog.pg_is_in_recovery())::int;{look}ROLLBACK;",
            self.short_transaction(),
        );
        let answer = run(&mut connection, batch).await;
        let reached = answer.affected.len();
        // Rows: the check, the locks, and the record where there is one.
        let row = answer.rows.get(2);
        let Some(error) = answer.error else {
            connection.release();
            return match lost {
                Lost::Record(_) => {
                    recorded(row, mark).unwrap_or_else(|error| Look::NotYet(error.to_string()))
                }
                Lost::Completion(lease) => {
                    completed(row, lease).unwrap_or_else(|error| Look::NotYet(error.to_string()))
                }
            };
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
