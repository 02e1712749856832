//! What became of a commit whose answer was lost.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    Mark, PostgresStore,
    begin::{Obstacle, roll_back},
    connection::run,
    record::Stored,
};
use crate::{
    error::CommitOutcome,
    record::RecordState,
    store::{Claim, Ended, StoreError, StoreErrorKind},
};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What one look on a new connection showed.
enum Look {
    Settled(Option<Stored>),
    /// The key's lock is held, the server is no primary, or it could not be asked.
    NotYet(String),
}

impl PostgresStore {
    /// On a new connection to the primary, obtains the key's lock (the lost session holds it until
    /// its commit is visible or rolled back) and, in a later statement, looks the record up.
    pub(super) async fn resolve(&self, claim: &Claim, mark: Mark, cause: sqlx::Error) -> Ended {
        let deadline = Instant::now() + self.inner.recovery_timeout;
        let mut pause = FIRST_PAUSE;
        loop {
            let look = tokio::time::timeout_at(deadline, self.look_once(claim)).await;
            let why = match look {
                Ok(Look::Settled(Some(stored))) => return decided(stored, mark),
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

    async fn look_once(&self, claim: &Claim) -> Look {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return Look::NotYet(error.to_string()),
        };
        // How many statements were completed when the server turned out to be a standby.
        const PRIMARY_CHECK: usize = 1;
        let batch = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; \
             SELECT 1 / (NOT pg_catalog.pg_is_in_recovery())::int;{}{}ROLLBACK;",
            self.open(Mark::new(), claim, false),
            self.look_up_call(claim),
        );
        let answer = run(&mut connection, batch).await;
        let reached = answer.affected.len();
        // Rows: the check, the locks, and the record where there is one.
        let row = answer.rows.get(2).map(Stored::read).transpose();
        let Some(error) = answer.error else {
            connection.release();
            return match row {
                Ok(stored) => Look::Settled(stored),
                Err(error) => Look::NotYet(error.to_string()),
            };
        };
        let why = if reached == PRIMARY_CHECK {
            "the server that answers is a standby".to_owned()
        } else {
            match Obstacle::of(error) {
                Obstacle::SameCallRuns | Obstacle::KeyIsHeld => {
                    "the key's lock is still held".to_owned()
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
fn decided(stored: Stored, mark: Mark) -> Ended {
    match stored.record.state {
        RecordState::Completed { at, .. } if stored.token == mark.0 => Ended::AsAsked(at),
        _ => Ended::Lost(stored.record),
    }
}
