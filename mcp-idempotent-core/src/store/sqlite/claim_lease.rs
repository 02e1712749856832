//! Claiming in lease mode: a claim or a takeover that is on the disk before the handler starts.

use sqlx::Arguments as _;

use super::{
    batch::{self, Encoded},
    error::store_error,
    lock::Opened,
    queue::{Checkout, Line},
    row,
    store::{SqliteStore, micros},
};
use crate::store::{Claim, Claimed, Lease, StoreError};

pub(super) async fn claim(
    store: &SqliteStore,
    claim: &Claim,
) -> Result<Claimed<Lease>, StoreError> {
    let mut checkout = match store.open_for(Some(claim), true).await? {
        Opened::Found(record) => return Ok(Claimed::Found(record)),
        Opened::New(checkout) => checkout,
    };
    let lease = insert_lease(store, &mut checkout, claim)
        .await
        .map_err(|error| store_error("claiming", error))?;
    checkout.give_back();
    Ok(Claimed::New(lease))
}

pub(super) async fn take_over(
    store: &SqliteStore,
    claim: &Claim,
    token: i64,
) -> Result<Option<Lease>, StoreError> {
    let mut checkout = store.lock(Line::Ordinary, true).await?;
    let taken = take_lease_over(store, &mut checkout, claim, token)
        .await
        .map_err(|error| store_error("taking over", error))?;
    match taken {
        Some(_) => checkout.give_back(),
        None => checkout.roll_back_and_give_back().await,
    }
    Ok(taken)
}

/// Writes the claim and commits it.
async fn insert_lease(
    store: &SqliteStore,
    checkout: &mut Checkout,
    claim: &Claim,
) -> Result<Lease, sqlx::Error> {
    let statement = &store.shared.statements.insert_in_progress;
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
    store: &SqliteStore,
    checkout: &mut Checkout,
    claim: &Claim,
    token: i64,
) -> Result<Option<Lease>, sqlx::Error> {
    let connection = &mut checkout.writer.connection;
    let drawn = store.draw_token(connection).await?;
    let taken = sqlx::query_as(store.shared.statements.take_over.clone())
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

fn claimed(claim: &Claim) -> Encoded {
    let mut arguments = row::written(claim)?;
    arguments.add(micros(claim.lease))?;
    arguments.add(micros(claim.in_doubt_retention))?;
    Ok(arguments)
}

/// The lease that a statement wrote. `written` has the origin and the attempts that it returned.
fn granted(claim: &Claim, token: i64, written: &[(i64, u32)]) -> Option<Lease> {
    let (origin, attempts) = *written.first()?;
    Some(Lease::new(claim.id, token).after(origin, attempts))
}
