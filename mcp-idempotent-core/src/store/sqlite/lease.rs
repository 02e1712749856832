//! Lease mode: renewing a lease, and its guarded ends.

use std::time::Duration;

use sqlx::{Arguments as _, Row as _, SqlStr, error::BoxDynError, sqlite::SqliteArguments};

use super::{
    batch::Encoded,
    error::store_error,
    queue::Line,
    store::{SqliteStore, micros},
};
use crate::{
    record::Timestamp,
    store::{CallInfo, Completion, Lease, LeaseEnd, StoreError},
};

pub(super) async fn renew(
    store: &SqliteStore,
    lease: &Lease,
    period: Duration,
) -> Result<LeaseEnd, StoreError> {
    let statement = &store.shared.statements.renew;
    change(store, "renewing", statement, lasting(lease, period)).await
}

pub(super) async fn complete(
    store: &SqliteStore,
    lease: &Lease,
    completion: &Completion,
) -> Result<LeaseEnd, StoreError> {
    let statements = &store.shared.statements;
    let statement = match completion.guard {
        None => &statements.complete,
        Some(_) => &statements.complete_both,
    };
    let ended = change(store, "completing", statement, finished(lease, completion)).await?;
    match ended {
        LeaseEnd::Done(_) => Ok(ended),
        LeaseEnd::Fenced => done_before(store, lease, completion).await,
    }
}

/// The engine repeats a completion, so an earlier one may have done the work and lost its answer:
/// the record is as the statement would leave it, and nobody else can have done that under this
/// token. No such commit is still on its way, because the statement that found no row has had the
/// write lock.
///
/// The other ends are not repeated after an error, and a renewal does the same a second time.
async fn done_before(
    store: &SqliteStore,
    lease: &Lease,
    completion: &Completion,
) -> Result<LeaseEnd, StoreError> {
    const DOING: &str = "finding out about a completion";
    let asked = held(lease).and_then(|mut arguments| {
        arguments.add(completion.response.as_deref())?;
        Ok(arguments)
    });
    let statement = &store.shared.statements.completed_as;
    let rows = store
        .rows(DOING, statement, asked, store.deadline())
        .await?;
    let at = rows.first().map(|row| row.try_get(0)).transpose();
    let at = at.map_err(|error| store_error(DOING, error))?;
    Ok(at.map_or(LeaseEnd::Fenced, |at| {
        LeaseEnd::Done(Timestamp::from_micros(at))
    }))
}

pub(super) async fn release(
    store: &SqliteStore,
    lease: &Lease,
    keep_origin: Duration,
) -> Result<LeaseEnd, StoreError> {
    let statements = &store.shared.statements;
    let (statement, arguments) = if keep_origin.is_zero() {
        (&statements.forget, held(lease))
    } else {
        (&statements.release, lasting(lease, keep_origin))
    };
    change(store, "releasing", statement, arguments).await
}

pub(super) async fn abandon(store: &SqliteStore, lease: &Lease) -> Result<LeaseEnd, StoreError> {
    let statement = &store.shared.statements.abandon;
    change(store, "abandoning", statement, held(lease)).await
}

pub(super) async fn has_unsettled(store: &SqliteStore, age: Duration) -> Result<bool, StoreError> {
    let mut arguments = SqliteArguments::default();
    let arguments = arguments
        .add(micros(age))
        .and_then(|()| arguments.add(CallInfo::INTERNAL))
        .map(|()| arguments);
    let statement = &store.shared.statements.unsettled;
    let found = store.rows(
        "looking for calls in doubt",
        statement,
        arguments,
        store.deadline(),
    );
    Ok(!found.await?.is_empty())
}

async fn change(
    store: &SqliteStore,
    doing: &str,
    statement: &SqlStr,
    arguments: Encoded,
) -> Result<LeaseEnd, StoreError> {
    let changed = store
        .write(doing, Line::Lease, statement, arguments)
        .await?;
    Ok(changed.first().map_or(LeaseEnd::Fenced, |at| {
        LeaseEnd::Done(Timestamp::from_micros(*at))
    }))
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
pub(super) fn add_guard(
    arguments: &mut SqliteArguments,
    completion: &Completion,
) -> Result<(), BoxDynError> {
    if let Some(guard) = &completion.guard {
        arguments.add(&guard.id.as_bytes()[..])?;
        arguments.add(guard.token)?;
        arguments.add(micros(completion.retention_of_guard()))?;
    }
    Ok(())
}

pub(super) fn finished(lease: &Lease, completion: &Completion) -> Encoded {
    let mut arguments = held(lease)?;
    arguments.add(completion.response.as_deref())?;
    arguments.add(micros(completion.retention))?;
    arguments.add(micros(completion.tombstone))?;
    add_guard(&mut arguments, completion)?;
    Ok(arguments)
}
