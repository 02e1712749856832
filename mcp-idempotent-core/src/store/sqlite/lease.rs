//! Lease mode, and what both modes share.

use std::time::Duration;

use sqlx::{Arguments as _, SqlStr, sqlite::SqliteArguments};

use super::{
    Opened, SqliteStore,
    batch::{self, Encoded},
    error::store_error,
    micros,
    writer::{Backoff, Checkout},
};
use crate::{
    record::{Record, Timestamp},
    store::{
        Claim, Claimed, Completion, Inspected, Lease, LeaseEnd, Reach, Store, StoreError,
        StoreErrorKind,
    },
};

/// How many rows one statement of the sweep may change, so that it holds the writer for a few
/// milliseconds at most.
const SWEEP_BATCH: u32 = 250;

impl Store for SqliteStore {
    /// A file is shared by the processes of a machine.
    fn reach(&self) -> Reach {
        Reach::Machine
    }

    fn transaction_limit(&self) -> Option<Duration> {
        Some(self.shared.transaction_limit)
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.read(claim, self.deadline()).await
    }

    /// The key is free when the one writer's lock is: a running transaction of another process
    /// does not say whose it is, so while it holds the lock every unknown key is in progress.
    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        match self.open_for(Some(claim), false).await {
            Ok(Opened::Found(record)) => Ok(Inspected::Found(record)),
            Ok(Opened::New(checkout)) => {
                checkout.roll_back_and_give_back().await;
                Ok(Inspected::NotSeen)
            }
            Err(error) if error.kind() == StoreErrorKind::Busy => Ok(Inspected::InProgress),
            Err(error) => Err(error),
        }
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let mut checkout = match self.open_for(Some(claim), true).await? {
            Opened::Found(record) => return Ok(Claimed::Found(record)),
            Opened::New(checkout) => checkout,
        };
        let token = self
            .insert_lease(&mut checkout, claim)
            .await
            .map_err(|error| store_error("claiming", error))?;
        checkout.give_back();
        Ok(Claimed::New(Lease::new(claim.id, token)))
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let statement = &self.shared.statements.complete;
        self.end_lease("completing", statement, finished(lease, &completion))
            .await
    }

    async fn take_over(&self, _: &Claim, _: i64) -> Result<Option<Lease>, StoreError> {
        Err(StoreError::new(StoreErrorKind::Other, "not there yet"))
    }

    async fn renew(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        Err(StoreError::new(StoreErrorKind::Other, "not there yet"))
    }

    async fn release(&self, lease: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        let statement = &self.shared.statements.release;
        self.end_lease("releasing", statement, held(lease)).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let statement = &self.shared.statements.abandon;
        self.end_lease("abandoning", statement, held(lease)).await
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let statements = &self.shared.statements;
        let mut left = limit;
        for statement in [&statements.purge, &statements.bury] {
            while left > 0 {
                let batch = left.min(SWEEP_BATCH);
                let mut arguments = SqliteArguments::default();
                let arguments = arguments.add(batch).map(|()| arguments);
                let changed = self.write("sweeping", statement, arguments).await?.len();
                let changed = u32::try_from(changed).unwrap_or(batch);
                left -= changed.min(left);
                if changed < batch {
                    break;
                }
            }
        }
        Ok(u64::from(limit - left))
    }
}

impl SqliteStore {
    /// Writes the claim and commits it.
    async fn insert_lease(
        &self,
        checkout: &mut Checkout,
        claim: &Claim,
    ) -> Result<i64, sqlx::Error> {
        let connection = &mut checkout.writer.connection;
        let tokens: Vec<i64> = sqlx::query_scalar(self.shared.statements.next_token.clone())
            .fetch_all(&mut *connection)
            .await?;
        let token = *tokens.first().ok_or(sqlx::Error::RowNotFound)?;
        sqlx::query(self.shared.statements.insert_in_progress.clone())
            .bind(&claim.id.as_bytes()[..])
            .bind(&claim.fingerprint.to_stored()[..])
            .bind(&*claim.call.tool)
            .bind(claim.key_prefix.as_deref())
            .bind(micros(claim.lease))
            .bind(token)
            .execute(connection)
            .await?;
        checkout.writer.commit().await?;
        Ok(token)
    }

    async fn end_lease(
        &self,
        doing: &str,
        statement: &SqlStr,
        arguments: Encoded,
    ) -> Result<LeaseEnd, StoreError> {
        let changed = self.write(doing, statement, arguments).await?;
        Ok(changed.first().map_or(LeaseEnd::Fenced, |at| {
            LeaseEnd::Done(Timestamp::from_micros(*at))
        }))
    }

    /// One statement that is a transaction of its own.
    async fn write(
        &self,
        doing: &str,
        statement: &SqlStr,
        arguments: Encoded,
    ) -> Result<Vec<i64>, StoreError> {
        let deadline = self.deadline();
        let mut checkout = self.shared.writers.take(deadline).await?;
        let written = async {
            let arguments = arguments.map_err(sqlx::Error::Encode)?;
            let mut backoff = Backoff::until(deadline);
            checkout.writer.make_ordinary().await?;
            loop {
                let arguments = Ok(arguments.clone());
                let connection = &mut checkout.writer.connection;
                let batch = batch::run(connection, statement, arguments, 1).await;
                match batch.done {
                    Ok(()) => return Ok(batch.rows),
                    Err(error) => backoff.retry(error).await?,
                }
            }
        };
        match written.await {
            Ok(rows) => {
                checkout.give_back();
                Ok(rows)
            }
            Err(error) => Err(store_error(doing, error)),
        }
    }
}

fn held(lease: &Lease) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&lease.id.as_bytes()[..])?;
    arguments.add(lease.token)?;
    Ok(arguments)
}

fn finished(lease: &Lease, completion: &Completion) -> Encoded {
    let mut arguments = held(lease)?;
    arguments.add(completion.response.as_deref())?;
    arguments.add(micros(completion.retention))?;
    arguments.add(micros(completion.tombstone))?;
    Ok(arguments)
}
