//! The one loop that repeats a batch until nothing is in its way.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    batch::{Batch, BatchRun},
    bound::{from_now, is_silence, silence},
    connection::Session,
    error::{self, answer},
    statement::Step,
    store::PostgresStore,
};
use crate::store::{StoreError, StoreErrorKind};

/// What a batch is for. This decides how it may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It opens a handler's transaction, and commits nothing.
    Open,
    /// It reads, and may be repeated at will.
    Read,
    /// It is a whole transaction that ends in COMMIT. It may be repeated after an error too, but
    /// from then on an earlier try may have been committed.
    Commit,
}

/// How a batch ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Through(Session, BatchRun),
    /// The connection is inside an aborted transaction.
    Raised(Session, Raised),
}

/// What a batch tells us by raising an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raised {
    SameCallRuns,
    KeyIsHeld,
    RecordExists,
    IsSerializable,
    IsStandby,
}

/// What was in the way of a batch.
#[derive(Debug)]
enum Obstacle {
    Raised(Raised),
    NotPrepared,
    CannotSerialize(sqlx::Error),
    ConnectionLost(sqlx::Error),
    /// Another connection may lead to the primary.
    ReadOnly(sqlx::Error),
    /// The connection's prepared statements were made for another form of our table.
    Stale(sqlx::Error),
    Other(sqlx::Error),
}

impl Outcome {
    /// For a batch in which no step raises an error on purpose.
    pub(super) fn through(self) -> (Session, BatchRun) {
        match self {
            Self::Through(session, answer) => (session, answer),
            Self::Raised(..) => unreachable!("no step of this batch raises an error"),
        }
    }
}

impl Obstacle {
    /// Reads the error of a batch that has only our own statements. If `stopped_at` is unknown, the
    /// codes that these raise on purpose still tell them apart.
    fn of(error: sqlx::Error, stopped_at: Option<Step>) -> Self {
        use Step::{ClaimLease, LockKey, LockKeyUnlessSerializable, Primary, Seen, TryLock};
        match (error::sqlstate(&error).as_deref(), stopped_at) {
            (Some(answer::NO), Some(Primary)) => Self::Raised(Raised::IsStandby),
            (
                Some(answer::NO),
                None | Some(ClaimLease | LockKeyUnlessSerializable | LockKey | TryLock),
            ) => Self::Raised(Raised::SameCallRuns),
            (
                Some(answer::KEY_BUSY),
                None | Some(ClaimLease | LockKeyUnlessSerializable | LockKey),
            ) => Self::Raised(Raised::KeyIsHeld),
            (Some(answer::SERIALIZABLE), None | Some(LockKeyUnlessSerializable)) => {
                Self::Raised(Raised::IsSerializable)
            }
            (Some(answer::SEEN), None | Some(Seen)) => Self::Raised(Raised::RecordExists),
            (Some(error::UNKNOWN_PREPARED_NAME), _) => Self::NotPrepared,
            (Some(error::NOT_SUPPORTED), _) => Self::Stale(error),
            _ if error::is_read_only(&error) => Self::ReadOnly(error),
            _ if error::is_connection_lost(&error) => Self::ConnectionLost(error),
            _ if error::is_serialization_failure(&error) => Self::CannotSerialize(error),
            _ => Self::Other(error),
        }
    }
}

/// The tries at one task, on as many connections as it takes.
#[derive(Debug)]
pub(super) struct Tries<'s> {
    pub(super) store: &'s PostgresStore,
    doing: &'static str,
    left: u32,
    /// How long to wait for one answer.
    bound: Duration,
    /// When all of them end.
    deadline: Instant,
    /// Whether they use the reserved connection.
    reserved: bool,
    last: Option<sqlx::Error>,
    /// A batch with a COMMIT got no answer that can be believed.
    pub(super) may_be_committed: bool,
}

impl<'s> Tries<'s> {
    /// The most tries for one claim. Its look-up counts as one.
    const LIMIT: u32 = 8;

    pub(super) fn new(store: &'s PostgresStore, doing: &'static str) -> Self {
        Self::within(store, doing, store.inner.answer_timeout)
    }

    /// On the reserved connection.
    pub(super) fn reserved(store: &'s PostgresStore, doing: &'static str) -> Self {
        Self {
            reserved: true,
            ..Self::new(store, doing)
        }
    }

    /// For statements that may take long: operator commands, sweeps and migrations.
    pub(super) fn patient(store: &'s PostgresStore, doing: &'static str) -> Self {
        Self::within(store, doing, store.inner.maintenance_timeout)
    }

    /// There is time for two connections, because the first one may have fallen silent while it was
    /// idle.
    fn within(store: &'s PostgresStore, doing: &'static str, bound: Duration) -> Self {
        let each = store.inner.acquire_timeout.saturating_add(bound);
        Self {
            store,
            doing,
            left: Self::LIMIT,
            bound,
            deadline: from_now(each.saturating_mul(2)),
            reserved: false,
            last: None,
            may_be_committed: false,
        }
    }

    /// How long to wait for the next answer.
    pub(super) fn bound(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.bound.min(left)
    }

    pub(super) fn batch(&self) -> Batch<'s> {
        Batch::new(self.store).within(self.bound())
    }

    /// Takes a connection.
    pub(super) async fn session(&mut self) -> Result<Session, StoreError> {
        let session = async {
            if self.reserved {
                self.store.reserved_session().await
            } else {
                self.store.session().await
            }
        };
        match timeout_at(self.deadline, session).await {
            Ok(session) => session,
            Err(_) => Err(self.gave_up()),
        }
    }

    /// Leaves an aborted transaction.
    pub(super) async fn roll_back(&self, session: &mut Session) -> Result<(), sqlx::Error> {
        let batch = self.batch().steps([Step::RollBack]);
        batch.run(session).await.into_result().map(drop)
    }

    pub(super) fn failed(&self, error: sqlx::Error) -> StoreError {
        self.store.error(self.doing, error)
    }

    /// Runs the batch that `write` makes. If something is in its way (statements that are not
    /// prepared, a lost connection, a refusal to serialise), it removes that and runs the batch
    /// again.
    pub(super) async fn run(
        &mut self,
        mut session: Session,
        purpose: Purpose,
        mut write: impl FnMut(Batch<'s>, &Session) -> Batch<'s>,
    ) -> Result<Outcome, StoreError> {
        // How often our prepared names were unknown on this connection.
        let mut unprepared = 0;
        while self.left > 0 && !self.bound().is_zero() {
            self.left -= 1;
            let batch = write(self.batch(), &session);
            let begins = batch.begins();
            let mut answer = match purpose {
                Purpose::Open => batch.open_transaction(&mut session).await,
                Purpose::Read | Purpose::Commit => batch.run(&mut session).await,
            };
            let Some(error) = answer.error.take() else {
                return Ok(Outcome::Through(session, answer));
            };
            let obstacle = Obstacle::of(error, answer.stopped_at());
            if let Obstacle::Raised(raised) = obstacle {
                return Ok(Outcome::Raised(session, raised));
            }
            if let Obstacle::ConnectionLost(_) = obstacle {
                self.store.inner.source.has_lost_one();
            }
            // Whether nothing was committed and the connection can be used again. After a batch
            // with a COMMIT, only a transaction that was still open proves it: a pooler's error may
            // hide a commit, whatever its code.
            let is_good = match (purpose, &obstacle) {
                (_, Obstacle::ConnectionLost(error)) if is_silence(error) => false,
                (Purpose::Commit, _) => {
                    let undone = Box::pin(undo(self.batch(), &mut session)).await;
                    matches!(undone, Ok(true))
                }
                (_, Obstacle::ConnectionLost(_)) => false,
                (Purpose::Read, _) if !begins => true,
                (Purpose::Open | Purpose::Read, _) => {
                    Box::pin(self.roll_back(&mut session)).await.is_ok()
                }
            };
            match obstacle {
                Obstacle::NotPrepared if is_good => {
                    unprepared += 1;
                    Box::pin(self.prepare(&mut session, unprepared > 1)).await?;
                    continue;
                }
                Obstacle::CannotSerialize(error) if is_good => {
                    self.last = Some(error);
                    continue;
                }
                Obstacle::Other(error) if is_good || purpose != Purpose::Commit => {
                    if is_good {
                        session.release();
                    }
                    return Err(self.failed(error));
                }
                Obstacle::ConnectionLost(error)
                | Obstacle::ReadOnly(error)
                | Obstacle::Stale(error)
                | Obstacle::CannotSerialize(error)
                | Obstacle::Other(error) => self.last = Some(error),
                Obstacle::NotPrepared | Obstacle::Raised(_) => {}
            }
            self.may_be_committed |= purpose == Purpose::Commit && !is_good;
            drop(session);
            session = Box::pin(self.session()).await?;
            unprepared = 0;
        }
        Err(self.gave_up())
    }

    pub(super) fn gave_up(&mut self) -> StoreError {
        match self.last.take() {
            Some(error) => self.failed(error),
            None if self.bound().is_zero() => self.failed(silence(self.bound)),
            None => StoreError::new(
                StoreErrorKind::Busy,
                format!(
                    "{}: the record changed each time it was looked at",
                    self.doing
                ),
            ),
        }
    }

    /// Prepares our statements on a connection outside any transaction. Two signs reveal a pooler
    /// that gives each transaction a different session: right after this the names are unknown
    /// again, or they are already known although they were unknown a moment ago. Names are then no
    /// longer used.
    async fn prepare(&self, session: &mut Session, again: bool) -> Result<(), StoreError> {
        if !again {
            // One implicit transaction, so that the lock timeout ends with it. Preparing waits for
            // anybody who has locked the table.
            let texts = self.store.inner.statements.preparations();
            let batch = self.batch().steps([Step::LockTimeout]);
            let batch = texts.fold(batch, |batch, text| batch.write(Step::Prepare, &text));
            match batch.run(session).await.error {
                None => return Ok(()),
                Some(error)
                    if error::sqlstate(&error).as_deref()
                        == Some(error::DUPLICATE_PREPARED_NAME) => {}
                Some(error) => return Err(self.failed(error)),
            }
        }
        if self.store.inner.prepared.swap(false, Ordering::Relaxed) {
            tracing::info!(
                "prepared statements do not last on these connections (a pooler?); continuing without them"
            );
        }
        Ok(())
    }
}

/// Leaves the transaction of a batch that ends in a plain COMMIT and was stopped by an error.
/// Returns whether the transaction was still open: only then is it certain that the COMMIT was not
/// carried out. ROLLBACK AND CHAIN fails outside a transaction, where a plain ROLLBACK would
/// succeed.
async fn undo(batch: Batch<'_>, session: &mut Session) -> Result<bool, sqlx::Error> {
    let batch = batch.steps([Step::RollBackAndChain, Step::RollBack]);
    match batch.run(session).await.error {
        None => Ok(true),
        Some(error) if error::sqlstate(&error).as_deref() == Some(error::NO_TRANSACTION) => {
            Ok(false)
        }
        Some(error) => Err(error),
    }
}
