//! Lease mode, and what both modes share.

use std::time::Duration;

use sqlx::{Arguments as _, SqlStr, error::BoxDynError, sqlite::SqliteArguments};

use super::{
    Opened, SqliteStore,
    batch::{self, Encoded},
    error::store_error,
    micros,
    queue::{Checkout, Line},
};
use crate::{
    record::{Record, Timestamp},
    store::{
        CallInfo, Claim, Claimed, Completion, Inspected, Lease, LeaseEnd, Reach, Store, StoreError,
        StoreErrorKind,
    },
};

/// How many rows one statement of the sweep may change, so that it holds the writer for at most a
/// few milliseconds.
const SWEEP_BATCH: u32 = 250;

impl Store for SqliteStore {
    /// The processes of one machine can share a file.
    fn reach(&self) -> Reach {
        Reach::Machine
    }

    fn transaction_limit(&self) -> Option<Duration> {
        Some(self.shared.transaction_limit)
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.read(claim, self.deadline()).await
    }

    /// The key is free if the write lock is. A running transaction of another process does not say
    /// which key it belongs to, so while it holds the lock every unknown key counts as in progress.
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
        let lease = self
            .insert_lease(&mut checkout, claim)
            .await
            .map_err(|error| store_error("claiming", error))?;
        checkout.give_back();
        Ok(Claimed::New(lease))
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        let mut checkout = self.lock(Line::Ordinary, true).await?;
        let taken = self
            .take_lease_over(&mut checkout, claim, token)
            .await
            .map_err(|error| store_error("taking over", error))?;
        match taken {
            Some(_) => checkout.give_back(),
            None => checkout.roll_back_and_give_back().await,
        }
        Ok(taken)
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        let statement = &self.shared.statements.renew;
        self.change_lease("renewing", statement, lasting(lease, period))
            .await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let statements = &self.shared.statements;
        let statement = match completion.guard {
            None => &statements.complete,
            Some(_) => &statements.complete_both,
        };
        self.change_lease("completing", statement, finished(lease, &completion))
            .await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        let statements = &self.shared.statements;
        let (statement, arguments) = if keep_origin.is_zero() {
            (&statements.forget, held(lease))
        } else {
            (&statements.release, lasting(lease, keep_origin))
        };
        self.change_lease("releasing", statement, arguments).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let statement = &self.shared.statements.abandon;
        self.change_lease("abandoning", statement, held(lease))
            .await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        let mut arguments = SqliteArguments::default();
        let arguments = arguments
            .add(micros(age))
            .and_then(|()| arguments.add(CallInfo::INTERNAL))
            .map(|()| arguments);
        let statement = &self.shared.statements.unsettled;
        let found = self.rows(
            "looking for calls in doubt",
            statement,
            arguments,
            self.deadline(),
        );
        Ok(!found.await?.is_empty())
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let statements = &self.shared.statements;
        let mut left = limit;
        for statement in [&statements.purge, &statements.bury] {
            while left > 0 {
                let batch = left.min(SWEEP_BATCH);
                let mut arguments = SqliteArguments::default();
                let arguments = arguments.add(batch).map(|()| arguments);
                let changed = self
                    .write("sweeping", Line::Ordinary, statement, arguments)
                    .await?
                    .len();
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
    ) -> Result<Lease, sqlx::Error> {
        let statement = &self.shared.statements.insert_in_progress;
        let connection = &mut checkout.writer.connection;
        let batch = batch::run(connection, statement, claimed(claim), 4).await;
        batch.done?;
        let [token, origin, attempts] = batch.values[..] else {
            return Err(sqlx::Error::RowNotFound);
        };
        let attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
        Ok(Lease::new(claim.id, token).after(origin, attempts))
    }

    /// Commits only if there was something to take over.
    async fn take_lease_over(
        &self,
        checkout: &mut Checkout,
        claim: &Claim,
        token: i64,
    ) -> Result<Option<Lease>, sqlx::Error> {
        let connection = &mut checkout.writer.connection;
        let drawn = self.draw_token(connection).await?;
        let taken = sqlx::query_as(self.shared.statements.take_over.clone())
            .bind(&claim.id.as_bytes()[..])
            .bind(&claim.fingerprint.to_stored()[..])
            .bind(token)
            .bind(drawn)
            .bind(micros(claim.lease))
            .bind(micros(claim.in_doubt_retention))
            .fetch_all(connection)
            .await?;
        let lease = granted(claim, drawn, &taken);
        if lease.is_some() {
            checkout.writer.commit().await?;
        }
        Ok(lease)
    }

    async fn change_lease(
        &self,
        doing: &str,
        statement: &SqlStr,
        arguments: Encoded,
    ) -> Result<LeaseEnd, StoreError> {
        let changed = self.write(doing, Line::Lease, statement, arguments).await?;
        Ok(changed.first().map_or(LeaseEnd::Fenced, |at| {
            LeaseEnd::Done(Timestamp::from_micros(*at))
        }))
    }
}

fn claimed(claim: &Claim) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&claim.id.as_bytes()[..])?;
    arguments.add(&claim.fingerprint.to_stored()[..])?;
    arguments.add(&*claim.call.tool)?;
    arguments.add(claim.application())?;
    arguments.add(claim.scope())?;
    arguments.add(claim.key_prefix.as_deref())?;
    arguments.add(micros(claim.lease))?;
    arguments.add(micros(claim.in_doubt_retention))?;
    Ok(arguments)
}

/// The lease that a statement wrote. `written` has the origin and the attempts that it returned.
fn granted(claim: &Claim, token: i64, written: &[(i64, u32)]) -> Option<Lease> {
    let (origin, attempts) = *written.first()?;
    Some(Lease::new(claim.id, token).after(origin, attempts))
}

pub(super) fn held(lease: &Lease) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&lease.id.as_bytes()[..])?;
    arguments.add(lease.token)?;
    Ok(arguments)
}

fn lasting(lease: &Lease, period: Duration) -> Encoded {
    let mut arguments = held(lease)?;
    arguments.add(micros(period))?;
    Ok(arguments)
}

/// Adds the completion's guard, if there is one.
pub(super) fn guarded(
    arguments: &mut SqliteArguments,
    completion: &Completion,
) -> Result<(), BoxDynError> {
    if let Some(guard) = &completion.guard {
        arguments.add(&guard.id.as_bytes()[..])?;
        arguments.add(guard.token)?;
    }
    Ok(())
}

pub(super) fn finished(lease: &Lease, completion: &Completion) -> Encoded {
    let mut arguments = held(lease)?;
    arguments.add(completion.response.as_deref())?;
    arguments.add(micros(completion.retention))?;
    arguments.add(micros(completion.tombstone))?;
    guarded(&mut arguments, completion)?;
    Ok(arguments)
}
