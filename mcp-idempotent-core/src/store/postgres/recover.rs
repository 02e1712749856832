//! What became of a commit whose answer was lost.

use std::time::Duration;

use sqlx::{Row as _, postgres::PgRow};
use tokio::time::{Instant, sleep};

use super::{
    batch::{BatchRun, moment},
    bound::from_now,
    connection::Session,
    error,
    literal::Argument,
    lock::Mark,
    look_up::Stored,
    statement::Step,
    store::PostgresStore,
    tries::{Outcome, Purpose, Raised, Tries},
};
use crate::{
    error::CommitOutcome,
    record::RecordState,
    store::{Claim, Ended, Lease, StoreError, StoreErrorKind},
};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// What a transaction was meant to commit, and how to find out whether it did.
#[derive(Clone, Copy)]
pub(super) enum Sought<'a> {
    /// A record with this mark, under the key's lock.
    Record(&'a Claim, Mark),
    /// A lease's completion. The transaction with this mark holds its own lock from its beginning.
    Completion(&'a Lease, Mark),
    /// No record. The server is asked about the transaction itself.
    Nothing,
}

/// What the server said about a transaction's number.
#[derive(Debug, Clone, Copy)]
pub(super) enum TransactionId {
    Is(i64),
    /// It had none, because it had written nothing.
    None,
    Unheard,
}

impl TransactionId {
    /// What a batch with [`Step::Check`] was answered.
    pub(super) fn heard(answer: &BatchRun) -> Self {
        let number = |row: &PgRow| row.try_get::<Option<i64>, _>(0).ok();
        match answer.row(Step::Check).and_then(number) {
            Some(Some(id)) => Self::Is(id),
            Some(None) => Self::None,
            None => Self::Unheard,
        }
    }
}

/// What one look showed.
enum Look {
    /// How it ended. `None` means that nothing was committed.
    Settled(Option<Ended>),
    /// It cannot be found out.
    Never(&'static str),
    /// The lock is held, the server is not a primary, or it could not be asked.
    NotYet(String),
}

/// Takes the lock on the primary, and in a later statement looks for what should have been written.
/// The lost session holds the lock until its commit is visible or rolled back. The first try is on
/// `kept`, if that connection still answers, and later ones on new connections. With the lock
/// taken, it does not matter which session asks.
pub(super) async fn find_out(
    store: &PostgresStore,
    sought: Sought<'_>,
    transaction: TransactionId,
    cause: sqlx::Error,
    mut kept: Option<Session>,
) -> Ended {
    let deadline = from_now(store.inner.recovery_timeout);
    let mut pause = FIRST_PAUSE;
    loop {
        let look = look_once(store, sought, transaction, kept.take());
        let (why, is_last) = match tokio::time::timeout_at(deadline, look).await {
            Ok(Look::Settled(Some(ended))) => return ended,
            Ok(Look::Settled(None)) => {
                let doing = if error::is_connection_lost(&cause) {
                    "the connection was lost at the commit, and nothing was committed"
                } else {
                    "the database refused to commit"
                };
                return Ended::Aborted(store.error(doing, cause));
            }
            Ok(Look::NotYet(why)) => (why, false),
            Ok(Look::Never(why)) => (why.to_owned(), true),
            Err(_) => ("the database did not answer".to_owned(), true),
        };
        if is_last || Instant::now() + pause >= deadline {
            let error = StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "the connection was lost at the commit, and its outcome could not be determined: {why}"
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
    store: &PostgresStore,
    sought: Sought<'_>,
    transaction: TransactionId,
    kept: Option<Session>,
) -> Look {
    match (sought, transaction) {
        (Sought::Nothing, TransactionId::None) => return Look::Settled(None),
        (Sought::Nothing, TransactionId::Unheard) => return Look::Never("it left no record"),
        _ => {}
    }
    let mut tries = Tries::new(store, "the lost commit could not be looked up");
    let session = match kept {
        Some(mut kept) => match tries.roll_back(&mut kept).await {
            Ok(()) => kept,
            Err(error) => return Look::NotYet(error.to_string()),
        },
        None => match tries.session().await {
            Ok(session) => session,
            Err(error) => return Look::NotYet(error.to_string()),
        },
    };
    let looked = tries.run(session, Purpose::Read, |batch, session| {
        let batch = batch.begin_short().steps([Step::Primary]);
        let batch = match (sought, transaction) {
            (Sought::Record(claim, _), _) => batch
                .try_locks(store, Step::LockKey, claim)
                .call(Step::LookUp, &Argument::record(claim)),
            (Sought::Completion(lease, mark), _) => {
                let lock = store.inner.locks.of_transaction(mark);
                batch
                    .call(Step::TryLock, &[Argument::Integer(lock)])
                    .call(Step::Completion, &[Argument::Bytes(lease.id.as_bytes())])
            }
            (Sought::Nothing, TransactionId::Is(id)) => {
                batch.call(Step::TransactionStatus, &[Argument::Integer(id)])
            }
            (Sought::Nothing, _) => batch,
        };
        batch.steps([if session.is_chained() {
            Step::RollBackAndChain
        } else {
            Step::RollBack
        }])
    });
    match looked.await {
        Ok(Outcome::Through(session, answer)) => {
            if session.is_chained() {
                session.release_ended();
            } else {
                session.release();
            }
            read(sought, &answer).unwrap_or_else(|error| Look::NotYet(error.to_string()))
        }
        Ok(Outcome::Raised(mut session, raised)) => {
            if tries.roll_back(&mut session).await.is_ok() {
                session.release();
            }
            let why = match raised {
                Raised::IsStandby => "the server that answers is a standby",
                _ => "the lost session still holds its lock",
            };
            Look::NotYet(why.to_owned())
        }
        Err(error) => Look::NotYet(error.to_string()),
    }
}

fn read(sought: Sought<'_>, answer: &BatchRun) -> Result<Look, sqlx::Error> {
    match sought {
        Sought::Record(_, mark) => recorded(answer.row(Step::LookUp), mark),
        Sought::Completion(lease, _) => completed(answer.row(Step::Completion), lease),
        Sought::Nothing => status(answer.one(Step::TransactionStatus)?),
    }
}

/// The record decides. It is this transaction's own, or another call's.
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

/// Token and state decide, because nobody else completes a record under this token.
fn completed(row: Option<&PgRow>, lease: &Lease) -> Result<Look, sqlx::Error> {
    const COMPLETED: i32 = 1;
    let Some(row) = row else {
        // It was completed and has been swept, or it was fenced. There is no way to tell.
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

/// "Aborted" may be believed. "Committed" may come from a server that took over, and be about a
/// transaction of its own with the same number.
fn status(row: &PgRow) -> Result<Look, sqlx::Error> {
    Ok(match row.try_get::<Option<&str>, _>(0)? {
        Some("aborted") => Look::Settled(None),
        Some("in progress") => Look::NotYet("it is still running".to_owned()),
        _ => Look::Never("it left no record"),
    })
}
