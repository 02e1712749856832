//! Batches of statements that go over a connection in one round trip, and the one loop that repeats a
//! batch until nothing is in its way.

use std::sync::atomic::Ordering;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row as _, postgres::PgRow};

use super::{
    connection::{Session, drain},
    error::{self, answer},
    literal::Argument,
    statement::{Statements, Step},
    store::PostgresStore,
};
use crate::{
    record::Timestamp,
    store::{Claim, StoreError, StoreErrorKind},
};

/// Statements for one round trip, each of them a named step.
#[derive(Debug)]
pub(super) struct Batch<'s> {
    statements: &'s Statements,
    by_name: bool,
    text: String,
    steps: Vec<Step>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(store: &'s PostgresStore) -> Self {
        Self {
            statements: &store.inner.statements,
            by_name: store.prepared(),
            text: String::with_capacity(512),
            steps: Vec::with_capacity(8),
        }
    }

    /// A batch that calls nothing by its prepared name.
    pub(super) fn in_full(store: &'s PostgresStore) -> Self {
        Self {
            by_name: false,
            ..Self::new(store)
        }
    }

    /// Adds a statement that has no parameters.
    pub(super) fn step(&mut self, step: Step) {
        self.call(step, &[]);
    }

    pub(super) fn call(&mut self, step: Step, arguments: &[Argument<'_>]) {
        let by_name = self.by_name && self.statements.has_name(step);
        self.statements
            .push(&mut self.text, by_name, step, arguments);
        self.steps.push(step);
    }

    /// Adds a statement whose text is made for this batch.
    pub(super) fn write(&mut self, step: Step, text: &str) {
        self.text.push_str(text);
        self.text.push(';');
        self.steps.push(step);
    }

    /// Begins a short transaction of our own, with a bound on every wait for a lock.
    pub(super) fn begin_short(&mut self) {
        self.step(Step::BeginReadCommitted);
        self.step(Step::LockTimeout);
    }

    /// Tries the locks of `claim`.
    pub(super) fn open(&mut self, store: &PostgresStore, step: Step, claim: &Claim) {
        let locks = &store.inner.locks;
        let (call, key) = (locks.of_call(claim), locks.of_key(claim));
        self.call(step, &[Argument::Integer(call), Argument::Integer(key)]);
    }

    fn calls_names(&self) -> bool {
        let mut steps = self.steps.iter();
        self.by_name && steps.any(|step| self.statements.has_name(*step))
    }

    fn begins(&self) -> bool {
        matches!(
            self.steps.first(),
            Some(Step::Begin | Step::BeginReadCommitted | Step::BeginReadOnly)
        )
    }

    /// Runs the batch by the simple query protocol. Its error is one of these statements, or of the
    /// connection.
    pub(super) async fn run(self, connection: &mut PgConnection) -> Answer {
        let mut answer = Answer {
            steps: self.steps,
            affected: Vec::new(),
            rows: Vec::new(),
            error: None,
        };
        if let Err(error) = drain(connection).await {
            answer.error = Some(error);
            return answer;
        }
        let mut results = sqlx::raw_sql(AssertSqlSafe(self.text)).fetch_many(connection);
        loop {
            match results.try_next().await {
                Ok(Some(Either::Left(done))) => answer.affected.push(done.rows_affected()),
                Ok(Some(Either::Right(row))) => answer.rows.push((answer.affected.len(), row)),
                Ok(None) => break,
                Err(error) => {
                    answer.error = Some(error);
                    break;
                }
            }
        }
        drop(results);
        answer
    }
}

/// What a batch did: how far it came, what it returned, what stopped it.
#[derive(Debug)]
pub(super) struct Answer {
    steps: Vec<Step>,
    /// Rows affected, by each step that was completed.
    affected: Vec<u64>,
    /// Each with the place of its step.
    rows: Vec<(usize, PgRow)>,
    pub(super) error: Option<sqlx::Error>,
}

impl Answer {
    /// All went through, or what went wrong.
    pub(super) fn into_result(mut self) -> Result<Self, sqlx::Error> {
        self.error.take().map_or(Ok(self), Err)
    }

    pub(super) fn has_completed(&self, step: Step) -> bool {
        let place = self.steps.iter().position(|&of| of == step);
        place.is_some_and(|place| place < self.affected.len())
    }

    /// The step that raised the error, or during which the connection was lost.
    fn stopped_at(&self) -> Option<Step> {
        self.steps.get(self.affected.len()).copied()
    }

    pub(super) fn affected(&self, step: Step) -> u64 {
        let mut steps = self.steps.iter().zip(&self.affected);
        let found = steps.find(|&(&of, _)| of == step);
        found.map_or(0, |(_, &affected)| affected)
    }

    pub(super) fn rows(&self, step: Step) -> impl Iterator<Item = &PgRow> {
        let is_of = move |place: usize| self.steps.get(place) == Some(&step);
        let rows = self.rows.iter().filter(move |(place, _)| is_of(*place));
        rows.map(|(_, row)| row)
    }

    /// The row of a step that returns at most one.
    pub(super) fn row(&self, step: Step) -> Option<&PgRow> {
        self.rows(step).next()
    }

    /// The row of a step that always returns one.
    pub(super) fn one(&self, step: Step) -> Result<&PgRow, sqlx::Error> {
        self.row(step).ok_or(sqlx::Error::RowNotFound)
    }
}

/// The moment that a statement returned: its last column, whatever else it selects.
pub(super) fn moment(row: &PgRow) -> Result<Timestamp, sqlx::Error> {
    row.try_get(row.len() - 1).map(Timestamp::from_micros)
}

/// Leaves an aborted transaction.
pub(super) async fn roll_back(
    store: &PostgresStore,
    session: &mut Session,
) -> Result<(), sqlx::Error> {
    let mut batch = Batch::new(store);
    batch.step(Step::RollBack);
    batch.run(session).await.into_result().map(drop)
}

/// Leaves the transaction of a batch that ends in a plain COMMIT and was stopped by an error.
/// Whether it was still open: only then is it certain that the COMMIT was not carried out. With AND
/// CHAIN it fails outside a transaction, where a plain ROLLBACK would succeed.
async fn undo(store: &PostgresStore, session: &mut Session) -> Result<bool, sqlx::Error> {
    let mut batch = Batch::new(store);
    batch.step(Step::RollBackAndChain);
    batch.step(Step::RollBack);
    match batch.run(session).await.error {
        None => Ok(true),
        Some(error) if error::sqlstate(&error).as_deref() == Some(error::NO_TRANSACTION) => {
            Ok(false)
        }
        Some(error) => Err(error),
    }
}

/// What a batch is for, which says how it may be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It opens a handler's transaction, and commits nothing.
    Open,
    /// It reads, and may be repeated at will.
    Read,
    /// It is a transaction of its own that ends in COMMIT. It may be repeated after an error too, but
    /// from then on may have been committed before.
    Commit,
}

/// How a batch that came to an end was answered.
#[derive(Debug)]
pub(super) enum Outcome {
    Through(Session, Answer),
    /// The connection is inside an aborted transaction.
    Refused(Session, Refusal),
}

/// What a batch says by raising an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    SameCallRuns,
    KeyIsHeld,
    RecordExists,
    IsSerializable,
    IsStandby,
}

/// What was in the way of a batch.
#[derive(Debug)]
enum Obstacle {
    Refused(Refusal),
    NotPrepared,
    CannotSerialize(sqlx::Error),
    ConnectionLost(sqlx::Error),
    Other(sqlx::Error),
}

impl Obstacle {
    /// Reads the error of a batch that holds nothing but our own statements. Where `stopped_at` is not
    /// known, the codes that they raise on purpose differ.
    fn of(error: sqlx::Error, stopped_at: Option<Step>) -> Self {
        use Step::{Held, Open, OpenUnlessSerializable, Primary, Seen, TryLock};
        match (error::sqlstate(&error).as_deref(), stopped_at) {
            (Some(answer::NO), Some(Primary)) => Self::Refused(Refusal::IsStandby),
            (Some(answer::NO), None | Some(Open | OpenUnlessSerializable | TryLock)) => {
                Self::Refused(Refusal::SameCallRuns)
            }
            (Some(answer::KEY_BUSY), None | Some(Open | OpenUnlessSerializable)) => {
                Self::Refused(Refusal::KeyIsHeld)
            }
            (Some(answer::SERIALIZABLE), None | Some(OpenUnlessSerializable)) => {
                Self::Refused(Refusal::IsSerializable)
            }
            (Some(answer::SEEN), None | Some(Seen | Held)) => Self::Refused(Refusal::RecordExists),
            (Some(error::UNKNOWN_PREPARED_NAME), _) => Self::NotPrepared,
            _ if error::is_connection_lost(&error) => Self::ConnectionLost(error),
            _ if error::is_serialization_failure(&error) => Self::CannotSerialize(error),
            _ => Self::Other(error),
        }
    }
}

/// The tries at one thing, on as many connections as it takes.
#[derive(Debug)]
pub(super) struct Tries<'s> {
    pub(super) store: &'s PostgresStore,
    doing: &'static str,
    left: u32,
    last: Option<sqlx::Error>,
    /// A batch that was to be committed had no answer that can be believed.
    pub(super) may_be_committed: bool,
}

impl<'s> Tries<'s> {
    const LIMIT: u32 = 8;

    pub(super) fn new(store: &'s PostgresStore, doing: &'static str) -> Self {
        Self {
            store,
            doing,
            left: Self::LIMIT,
            last: None,
            may_be_committed: false,
        }
    }

    pub(super) fn failed(&self, error: sqlx::Error) -> StoreError {
        self.store.error(self.doing, error)
    }

    /// Runs the batch that `write` makes, deals with what is in its way (statements that are not
    /// prepared, a lost connection, a refusal to serialise), and runs it again.
    pub(super) async fn run(
        &mut self,
        mut session: Session,
        purpose: Purpose,
        mut write: impl FnMut(&mut Batch<'_>, &Session),
    ) -> Result<Outcome, StoreError> {
        // How often our names were unknown on this connection.
        let mut unprepared = 0;
        while self.left > 0 {
            self.left -= 1;
            let mut batch = Batch::new(self.store);
            write(&mut batch, &session);
            let (begins, calls_names) = (batch.begins(), batch.calls_names());
            let mut answer = match purpose {
                Purpose::Open => Answer {
                    steps: Vec::new(),
                    affected: Vec::new(),
                    rows: Vec::new(),
                    error: session.begin(batch.text).await.err(),
                },
                Purpose::Read | Purpose::Commit => batch.run(&mut session).await,
            };
            let Some(error) = answer.error.take() else {
                if calls_names && unprepared == 0 {
                    self.found_prepared();
                }
                return Ok(Outcome::Through(session, answer));
            };
            let obstacle = Obstacle::of(error, answer.stopped_at());
            if let Obstacle::Refused(refusal) = obstacle {
                return Ok(Outcome::Refused(session, refusal));
            }
            // Whether nothing was committed, and the connection can be used again.
            let is_good = match purpose {
                Purpose::Commit => {
                    let bound = self.store.inner.recovery_timeout;
                    let undone = tokio::time::timeout(bound, undo(self.store, &mut session)).await;
                    matches!(undone, Ok(Ok(true)))
                }
                _ if matches!(obstacle, Obstacle::ConnectionLost(_)) => false,
                Purpose::Read if !begins => true,
                Purpose::Open | Purpose::Read => roll_back(self.store, &mut session).await.is_ok(),
            };
            match obstacle {
                Obstacle::NotPrepared if is_good => {
                    unprepared += 1;
                    self.prepare(&mut session, unprepared > 1).await?;
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
                | Obstacle::CannotSerialize(error)
                | Obstacle::Other(error) => self.last = Some(error),
                Obstacle::NotPrepared | Obstacle::Refused(_) => {}
            }
            self.may_be_committed |= purpose == Purpose::Commit && !is_good;
            drop(session);
            session = self.store.session().await?;
            unprepared = 0;
        }
        Err(self.gave_up())
    }

    pub(super) fn gave_up(&mut self) -> StoreError {
        match self.last.take() {
            Some(error) => self.failed(error),
            None => StoreError::new(
                StoreErrorKind::Busy,
                format!(
                    "{}: the record changed each time it was looked at",
                    self.doing
                ),
            ),
        }
    }

    /// Prepares our statements on a connection outside any transaction. Names that are unknown
    /// again right after that, or known already to a session that did not know them a moment ago,
    /// mean a pooler that gives each transaction another session: then no names any more.
    async fn prepare(&self, session: &mut Session, again: bool) -> Result<(), StoreError> {
        if !again {
            // One implicit transaction, so that the bound ends with it. Preparing waits for anybody
            // who has locked the table.
            let mut batch = Batch::new(self.store);
            batch.step(Step::LockTimeout);
            for text in self.store.inner.statements.preparations() {
                batch.write(Step::Prepare, &text);
            }
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
                "prepared statements do not last on these connections (a pooler?); going on without"
            );
        }
        Ok(())
    }

    /// Our names were known, without having been prepared right before.
    fn found_prepared(&self) {
        let names_last = &self.store.inner.names_last;
        if !names_last.load(Ordering::Relaxed) {
            names_last.store(true, Ordering::Relaxed);
        }
    }
}
