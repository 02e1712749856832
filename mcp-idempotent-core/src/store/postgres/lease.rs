//! Lease mode: a claim that is durable before the handler starts, and its guarded ends.
//!
//! A lapsed lease is in doubt, and stays in doubt. Its holder is fenced from the moment it ends, even if
//! nobody else has touched the row. By then a caller may have been told that the outcome is unknown, and
//! an operator may be looking into it.

use std::time::Duration;

use sqlx::{Row as _, postgres::PgRow};

use super::{
    batch::{Batch, moment, roll_back},
    claim::{Told, refused_by},
    connection::Session,
    literal::Argument,
    look_up::attempts,
    statement::Step,
    store::PostgresStore,
    tries::{Outcome, Purpose, Refusal, Tries},
};
use crate::{
    record::Timestamp,
    store::{Claim, Claimed, Completion, Lease, LeaseEnd, StoreError},
};

pub(super) async fn claim(
    store: &PostgresStore,
    claim: &Claim,
) -> Result<Claimed<Lease>, StoreError> {
    let mut tries = Tries::new(store, "the claim failed");
    let mut session = store.session().await?;
    let fingerprint = claim.fingerprint.to_stored();
    let id = Argument::Bytes(claim.id.as_bytes());
    let arguments = [
        id,
        Argument::Bytes(&fingerprint),
        Argument::tool(claim),
        Argument::prefix(claim),
        Argument::interval(claim.lease),
        Argument::interval(claim.in_doubt_retention),
        Argument::application(claim),
        Argument::scope(claim),
    ];
    loop {
        let granted = grant(&mut tries, session, claim, Step::Claim, |batch| {
            batch
                .call(Step::ExpireUnkept, &Argument::record(claim))
                .call(Step::Held, &[id])
                .call(Step::Claim, &arguments)
        });
        let (refused, refusal) = match granted.await? {
            Granted::Lease(lease) => return Ok(Claimed::New(lease)),
            Granted::Refused(session, refusal) => (session, refusal),
        };
        let look_up = Batch::new(store)
            .steps([Step::RollBack])
            .begin_short()
            .call(Step::LookUp, &Argument::record(claim))
            .steps([Step::Commit]);
        // Try again if the record has expired, or was released, in between.
        session = match refused_by(store, refused, refusal, look_up).await? {
            Told::Answer(answer) => return Ok(answer),
            Told::Again(session) => session,
        };
    }
}

pub(super) async fn take_over(
    store: &PostgresStore,
    claim: &Claim,
    token: i64,
) -> Result<Option<Lease>, StoreError> {
    let mut tries = Tries::new(store, "the claim failed");
    let session = store.session().await?;
    let fingerprint = claim.fingerprint.to_stored();
    let arguments = [
        Argument::Bytes(claim.id.as_bytes()),
        Argument::Integer(token),
        Argument::Bytes(&fingerprint),
        Argument::interval(claim.lease),
        Argument::interval(claim.in_doubt_retention),
    ];
    let granted = grant(&mut tries, session, claim, Step::TakeOver, |batch| {
        batch.call(Step::TakeOver, &arguments)
    });
    match granted.await? {
        Granted::Lease(lease) => Ok(Some(lease)),
        Granted::Refused(mut session, _) => {
            if roll_back(store, &mut session).await.is_ok() {
                session.release();
            }
            Ok(None)
        }
    }
}

/// What came of a statement that grants a lease.
enum Granted {
    Lease(Lease),
    /// The connection may be inside an aborted transaction.
    Refused(Session, Refusal),
}

/// Runs `change` under the claim's locks, in a durable transaction of its own. Its `step` returns what a
/// lease is made of.
async fn grant<'s>(
    tries: &mut Tries<'s>,
    session: Session,
    claim: &Claim,
    step: Step,
    change: impl Fn(Batch<'s>) -> Batch<'s>,
) -> Result<Granted, StoreError> {
    let store = tries.store;
    // If the change was committed but its answer was lost, the next try finds it in progress. Nobody
    // runs under that lease, so it lapses and is in doubt.
    let outcome = tries
        .run(session, Purpose::Commit, |batch, _| {
            let opened = batch.begin_short().steps([Step::Durably]);
            change(opened.try_locks(store, Step::Open, claim)).steps([Step::Commit])
        })
        .await?;
    let (session, answer) = match outcome {
        Outcome::Through(session, answer) => (session, answer),
        Outcome::Refused(session, refusal) => return Ok(Granted::Refused(session, refusal)),
    };
    let Some(row) = answer.row(step) else {
        // The record did not match the statement's conditions.
        return Ok(Granted::Refused(session, Refusal::RecordExists));
    };
    let lease =
        granted(claim, row).map_err(|error| store.error("the claim could not be read", error))?;
    session.release();
    Ok(Granted::Lease(lease))
}

fn granted(claim: &Claim, row: &PgRow) -> Result<Lease, sqlx::Error> {
    let (token, origin) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Lease::new(claim.id, token).after(origin, attempts(row, 2)?))
}

/// Renews durably, like a claim. After a crash of the server, a lease must not end earlier than its
/// holder was told. Otherwise another attempt would take over from one that rightly goes on.
pub(super) async fn renew(
    store: &PostgresStore,
    lease: &Lease,
    period: Duration,
) -> Result<LeaseEnd, StoreError> {
    let period = [Argument::interval(period)];
    change(store, lease, Some(Step::Durably), Step::Renew, &period).await
}

pub(super) async fn complete(
    store: &PostgresStore,
    lease: &Lease,
    completion: &Completion,
) -> Result<LeaseEnd, StoreError> {
    // A caller is answered with this result: it must be there after a crash of the server.
    let durability = if store.inner.asynchronous_completions {
        Step::AtLeisure
    } else {
        Step::Durably
    };
    let durability = Some(durability);
    let result = Argument::completion(completion);
    match &completion.guard {
        None => change(store, lease, durability, Step::Complete, &result).await,
        Some(guard) => {
            let both = [&result[..], &Argument::attempt(guard)].concat();
            change(store, lease, durability, Step::CompleteBoth, &both).await
        }
    }
}

pub(super) async fn release(
    store: &PostgresStore,
    lease: &Lease,
    keep_origin: Duration,
) -> Result<LeaseEnd, StoreError> {
    if keep_origin.is_zero() {
        return change(store, lease, None, Step::Release, &[]).await;
    }
    let kept = [Argument::interval(keep_origin)];
    change(store, lease, None, Step::Keep, &kept).await
}

pub(super) async fn abandon(store: &PostgresStore, lease: &Lease) -> Result<LeaseEnd, StoreError> {
    change(store, lease, Some(Step::AtLeisure), Step::Abandon, &[]).await
}

/// Looks through the index of records that are not completed.
pub(super) async fn has_unsettled(
    store: &PostgresStore,
    age: Duration,
) -> Result<bool, StoreError> {
    let mut tries = Tries::new(
        store,
        "the calls that are not settled could not be looked for",
    );
    let session = store.session().await?;
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::Unsettled, &[Argument::interval(age)])
    });
    let (session, answer) = asked.await?.through();
    session.release();
    let found = answer.one(Step::Unsettled).and_then(|row| row.try_get(0));
    found.map_err(|error| tries.failed(error))
}

/// Runs one guarded statement: it changes a row under the row's own token, or not at all. If the answer
/// is lost, it asks again. A release that keeps nothing is an exception: it looks like a removal by
/// somebody else, so it then counts as fenced.
async fn change(
    store: &PostgresStore,
    lease: &Lease,
    durability: Option<Step>,
    step: Step,
    rest: &[Argument<'_>],
) -> Result<LeaseEnd, StoreError> {
    let mut tries = Tries::new(store, "the lease could not be changed");
    let session = store.session().await?;
    let arguments = [&Argument::attempt(lease), rest].concat();
    let changed = tries.run(session, Purpose::Commit, |batch, _| {
        let begun = batch.begin_short();
        let begun = match durability {
            Some(durability) => begun.steps([durability]),
            None => begun,
        };
        begun.call(step, &arguments).steps([Step::Commit])
    });
    let (session, answer) = changed.await?.through();
    let (session, at) = match answer.row(step) {
        None if tries.may_be_committed => ended_as(&mut tries, session, lease, step).await?,
        row => (session, row.map(moment).transpose()),
    };
    session.release();
    let at = at.map_err(|error| tries.failed(error))?;
    Ok(at.map_or(LeaseEnd::Fenced, LeaseEnd::Done))
}

/// Finds out when a statement whose answer was lost did its work: the record is as the statement would
/// leave it, and nobody else can have done that under this token. `None` if it did not.
async fn ended_as(
    tries: &mut Tries<'_>,
    session: Session,
    lease: &Lease,
    step: Step,
) -> Result<(Session, Result<Option<Timestamp>, sqlx::Error>), StoreError> {
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::EndedAs, &Argument::attempt(lease))
    });
    let (session, answer) = asked.await?.through();
    let read = |row: &PgRow| {
        Ok(match (step, row.try_get::<i32, _>(0)?) {
            (Step::Complete | Step::CompleteBoth, 1) | (Step::Abandon, 2) | (Step::Keep, 4) => {
                Some(moment(row)?)
            }
            _ => None,
        })
    };
    let at = answer.row(Step::EndedAs).map(read).transpose();
    Ok((session, at.map(Option::flatten)))
}
