//! Batches of statements that are sent in one round trip, and their answers.

use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, PgConnection, Row as _, postgres::PgRow};

use super::{
    bound::within,
    connection::{Session, drain},
    literal::Argument,
    statement::{Statements, Step},
    store::PostgresStore,
};
use crate::{record::Timestamp, store::Claim};

/// Statements for one round trip. Each is a named step.
#[derive(Debug)]
pub(super) struct Batch<'s> {
    statements: &'s Statements,
    by_name: bool,
    text: String,
    steps: Vec<Step>,
    /// How long to wait for its answer.
    bound: Duration,
}

impl<'s> Batch<'s> {
    pub(super) fn new(store: &'s PostgresStore) -> Self {
        Self {
            statements: &store.inner.statements,
            by_name: store.prepared(),
            text: String::with_capacity(512),
            steps: Vec::with_capacity(8),
            bound: store.inner.answer_timeout,
        }
    }

    pub(super) const fn bound(&self) -> Duration {
        self.bound
    }

    /// Sets how long to wait for its answer.
    pub(super) fn within(self, bound: Duration) -> Self {
        Self { bound, ..self }
    }

    /// A batch that uses no prepared names.
    pub(super) fn in_full(store: &'s PostgresStore) -> Self {
        Self {
            by_name: false,
            ..Self::new(store)
        }
    }

    /// Adds statements that have no parameters.
    pub(super) fn steps<const N: usize>(self, steps: [Step; N]) -> Self {
        steps
            .into_iter()
            .fold(self, |batch, step| batch.call(step, &[]))
    }

    pub(super) fn call(mut self, step: Step, arguments: &[Argument<'_>]) -> Self {
        let by_name = self.by_name && self.statements.has_name(step);
        self.statements
            .push(&mut self.text, by_name, step, arguments);
        self.steps.push(step);
        self
    }

    /// Adds a statement whose text is made for this batch.
    pub(super) fn write(mut self, step: Step, text: &str) -> Self {
        self.text.push_str(text);
        self.text.push(';');
        self.steps.push(step);
        self
    }

    /// Begins a short transaction of our own, with a limit on every wait for a lock.
    pub(super) fn begin_short(self) -> Self {
        self.steps([Step::BeginReadCommitted, Step::LockTimeout])
    }

    /// Tries the locks of `claim`.
    pub(super) fn try_locks(self, store: &PostgresStore, step: Step, claim: &Claim) -> Self {
        self.call(step, &store.inner.locks.all_of(claim))
    }

    /// Whether it begins a transaction.
    pub(super) fn begins(&self) -> bool {
        let begin = |step: &Step| {
            let begins = [Step::Begin, Step::BeginReadCommitted, Step::BeginReadOnly];
            begins.contains(step)
        };
        self.steps.iter().any(begin)
    }

    /// Opens a transaction. On a pool's connection, only the error says what stopped it.
    pub(super) async fn open_transaction(self, session: &mut Session) -> BatchRun {
        if session.is_own() {
            return self.run(session).await;
        }
        BatchRun {
            error: session.begin(self.text, self.bound).await.err(),
            ..BatchRun::default()
        }
    }

    /// Runs the batch with the simple query protocol. Any error comes from these statements or from
    /// the connection.
    pub(super) async fn run(self, connection: &mut PgConnection) -> BatchRun {
        let mut answer = BatchRun {
            steps: self.steps,
            ..BatchRun::default()
        };
        let heard = async {
            drain(connection, self.bound).await?;
            let mut results = sqlx::raw_sql(AssertSqlSafe(self.text)).fetch_many(connection);
            while let Some(result) = results.try_next().await? {
                match result {
                    Either::Left(done) => answer.affected.push(done.rows_affected()),
                    Either::Right(row) => answer.rows.push((answer.affected.len(), row)),
                }
            }
            Ok(())
        };
        answer.error = within(self.bound, heard).await.err();
        answer
    }
}

/// What a batch did: how far it got, what it returned, and what stopped it.
#[derive(Debug, Default)]
pub(super) struct BatchRun {
    steps: Vec<Step>,
    /// The number of rows affected by each completed step.
    affected: Vec<u64>,
    /// Each row with the index of its step.
    rows: Vec<(usize, PgRow)>,
    pub(super) error: Option<sqlx::Error>,
}

impl BatchRun {
    /// The answer if everything went through, or what went wrong.
    pub(super) fn into_result(mut self) -> Result<Self, sqlx::Error> {
        self.error.take().map_or(Ok(self), Err)
    }

    pub(super) fn has_completed(&self, step: Step) -> bool {
        let place = self.steps.iter().position(|&of| of == step);
        place.is_some_and(|place| place < self.affected.len())
    }

    /// The step that raised the error, or during which the connection was lost.
    pub(super) fn stopped_at(&self) -> Option<Step> {
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

/// The time that a statement returned. It is always the last column.
pub(super) fn moment(row: &PgRow) -> Result<Timestamp, sqlx::Error> {
    row.try_get(row.len() - 1).map(Timestamp::from_micros)
}
