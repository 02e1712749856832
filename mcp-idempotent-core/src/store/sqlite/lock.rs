//! Taking SQLite's write lock, for a claim and for a single statement.

use std::time::Duration;

use sqlx::{SqlStr, SqliteConnection};
use tokio::time::Instant;

use super::{
    batch::{self, Encoded},
    error::{is_busy, is_read_only, store_error},
    queue::{Checkout, Line},
    row::{self, Found},
    store::SqliteStore,
    writer::Backoff,
};
use crate::{
    record::{Record, RecordState},
    store::{Claim, StoreError, StoreErrorKind},
};

/// What opening for a claim found.
pub(super) enum Opened {
    /// There is a record, which decides the answer. Nothing is open.
    Found(Record),
    /// SQLite's write lock is held, and no record blocks the claim.
    New(Checkout),
}

/// How a claim looks for its record.
enum Look {
    /// Beside any writer. Then takes the write lock.
    Beside,
    /// The same, and removes what is left of an expired record.
    MakingRoom,
    /// Under the write lock, because this was found beside the writers: its lease has ended, and its attempt
    /// may still be committing a result.
    Locked(Record),
}

impl Look {
    /// The answer of a claim that did not get the write lock in time.
    fn in_vain(self, error: StoreError) -> Result<Opened, StoreError> {
        match self {
            Self::Locked(record) if error.kind() == StoreErrorKind::Busy => {
                let lease_remaining = Duration::ZERO;
                let state = RecordState::InProgress { lease_remaining };
                Ok(Opened::Found(Record::new(record.fingerprint, state)))
            }
            _ => Err(error),
        }
    }
}

impl SqliteStore {
    /// Looks up and takes the write lock. If `durable`, the next commit must reach the disk.
    pub(super) async fn open_for(
        &self,
        claim: Option<&Claim>,
        durable: bool,
    ) -> Result<Opened, StoreError> {
        let deadline = self.deadline();
        let checkout = match self.shared.writers.try_take(deadline).await? {
            Some(checkout) => checkout,
            None => {
                let mut look = Look::Beside;
                if let Some(claim) = claim {
                    match self.read(claim, deadline).await? {
                        Found::Record(record) => return Ok(Opened::Found(record)),
                        Found::Lapsed(record) => look = Look::Locked(record),
                        Found::Nothing | Found::Remains => {}
                    }
                }
                match self.shared.writers.take(Line::Ordinary, deadline).await {
                    Ok(checkout) => checkout,
                    Err(error) => return look.in_vain(error),
                }
            }
        };
        self.lock_for(checkout, claim, durable, deadline).await
    }

    pub(super) async fn lock_for(
        &self,
        mut checkout: Checkout,
        claim: Option<&Claim>,
        durable: bool,
        deadline: Instant,
    ) -> Result<Opened, StoreError> {
        let failed = |error| store_error("claiming", error);
        let mut backoff = Backoff::until(deadline);
        let mut look = Look::Beside;
        loop {
            let writer = &mut checkout.writer;
            let locked = match claim {
                Some(claim) => {
                    let statements = &self.shared.statements;
                    let begin = match look {
                        Look::Beside => &statements.begin,
                        Look::MakingRoom => &statements.make_room,
                        Look::Locked(_) => &statements.begin_and_look,
                    };
                    let (text, level) = writer.at(durable, begin);
                    let found = row::find(&mut writer.connection, &text, claim).await;
                    if found.is_ok() {
                        writer.is_set(level);
                    }
                    found
                }
                None => writer.begin(durable).await.map(|()| Found::Nothing),
            };
            match (locked, &look) {
                (Ok(Found::Nothing), _) => return Ok(Opened::New(checkout)),
                (Ok(Found::Lapsed(record)), Look::Beside) => look = Look::Locked(record),
                (Ok(Found::Record(record)), Look::Beside) => {
                    checkout.give_back();
                    return Ok(Opened::Found(record));
                }
                (Ok(Found::Lapsed(record)), Look::MakingRoom) => {
                    checkout.writer.roll_back().await.map_err(failed)?;
                    look = Look::Locked(record);
                }
                (Ok(Found::Record(record) | Found::Lapsed(record)), _) => {
                    checkout.roll_back_and_give_back().await;
                    return Ok(Opened::Found(record));
                }
                (Ok(Found::Remains), _) => {
                    checkout.writer.roll_back().await.map_err(failed)?;
                    look = Look::MakingRoom;
                }
                (Err(error), _) => {
                    // If the lock was refused, nothing was begun, or only a look-up. The lock may
                    // be held by this same call in another process, so the next round looks again.
                    let may_be_open = matches!(look, Look::MakingRoom) || !is_busy(&error);
                    if claim.is_some() && may_be_open && checkout.writer.roll_back().await.is_err()
                    {
                        return Err(failed(error));
                    }
                    if let Err(error) = backoff.retry(error).await {
                        // A handler may have made the connection read-only.
                        if !is_read_only(&error) {
                            checkout.give_back();
                        }
                        return look.in_vain(failed(error));
                    }
                    let passed = self.shared.writers.let_leases_pass(checkout, deadline);
                    checkout = match passed.await {
                        Ok(checkout) => checkout,
                        Err(error) => return look.in_vain(error),
                    };
                }
            }
        }
    }

    /// Takes the write lock for a statement that depends on no claim.
    pub(super) async fn lock(&self, line: Line, durable: bool) -> Result<Checkout, StoreError> {
        let deadline = self.deadline();
        let checkout = self.shared.writers.take(line, deadline).await?;
        match self.lock_for(checkout, None, durable, deadline).await? {
            Opened::New(checkout) => Ok(checkout),
            Opened::Found(_) => unreachable!("without a claim nothing is looked up"),
        }
    }

    /// Runs one statement as a transaction of its own.
    pub(super) async fn write(
        &self,
        doing: &str,
        line: Line,
        statement: &SqlStr,
        arguments: Encoded,
    ) -> Result<Vec<i64>, StoreError> {
        let deadline = match line {
            Line::Lease => self.lease_deadline(),
            Line::Ordinary => self.deadline(),
        };
        let mut checkout = self.shared.writers.take(line, deadline).await?;
        let written = async {
            let arguments = arguments.map_err(sqlx::Error::Encode)?;
            let mut backoff = match line {
                Line::Lease => Backoff::eager(deadline),
                Line::Ordinary => Backoff::until(deadline),
            };
            loop {
                let arguments = Ok(arguments.clone());
                let writer = &mut checkout.writer;
                let (text, level) = writer.at(false, statement);
                let statements = 1 + usize::from(level.is_some());
                let batch = batch::run(&mut writer.connection, &text, arguments, statements).await;
                match batch.done {
                    Ok(()) => {
                        writer.is_set(level);
                        return Ok(batch.values);
                    }
                    Err(error) => backoff.retry(error).await?,
                }
            }
        };
        match written.await {
            Ok(rows) => {
                checkout.give_back();
                Ok(rows)
            }
            Err(error) => {
                // It did not get the lock, so it did nothing.
                if is_busy(&error) {
                    checkout.give_back();
                }
                Err(store_error(doing, error))
            }
        }
    }

    /// Draws the next fencing token in the open transaction.
    pub(super) async fn draw_token(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<i64, sqlx::Error> {
        let tokens: Vec<i64> = sqlx::query_scalar(self.shared.statements.next_token.clone())
            .fetch_all(connection)
            .await?;
        tokens.first().copied().ok_or(sqlx::Error::RowNotFound)
    }
}
