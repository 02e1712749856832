//! Taking SQLite's write lock, for a claim and for a single statement.

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
    record::Record,
    store::{Claim, StoreError},
};

/// What opening for a claim found.
pub(super) enum Opened {
    /// There is a record, which decides the answer. Nothing is open.
    Found(Record),
    /// SQLite's write lock is held, and no record blocks the claim.
    New(Checkout),
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
                if let Some(claim) = claim
                    && let Some(record) = self.read(claim, deadline).await?
                {
                    return Ok(Opened::Found(record));
                }
                self.shared.writers.take(Line::Ordinary, deadline).await?
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
        let mut makes_room = false;
        loop {
            let writer = &mut checkout.writer;
            let locked = match claim {
                Some(claim) => {
                    let statements = &self.shared.statements;
                    let begin = if makes_room {
                        &statements.make_room
                    } else {
                        &statements.begin
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
            match locked {
                Ok(Found::Nothing) => return Ok(Opened::New(checkout)),
                Ok(Found::Record(record)) => {
                    if makes_room {
                        checkout.roll_back_and_give_back().await;
                    } else {
                        checkout.give_back();
                    }
                    return Ok(Opened::Found(record));
                }
                Ok(Found::Remains) => {
                    checkout.writer.roll_back().await.map_err(failed)?;
                    makes_room = true;
                }
                Err(error) => {
                    // If the lock was refused, nothing was begun, or only a look-up. The lock may
                    // be held by this same call in another process, so the next round looks again.
                    let may_be_open = makes_room || !is_busy(&error);
                    if claim.is_some() && may_be_open && checkout.writer.roll_back().await.is_err()
                    {
                        return Err(failed(error));
                    }
                    if let Err(error) = backoff.retry(error).await {
                        // A handler may have made the connection read-only.
                        if !is_read_only(&error) {
                            checkout.give_back();
                        }
                        return Err(failed(error));
                    }
                    checkout = self
                        .shared
                        .writers
                        .let_leases_pass(checkout, deadline)
                        .await?;
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
