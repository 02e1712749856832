//! Lease mode: renewing a lease, and its guarded ends.
//!
//! A lapsed lease is in doubt, and stays in doubt. Its holder is fenced from the moment it ends,
//! even if nobody else has touched the row. By then a caller may have been told that the outcome is
//! unknown, and an operator may be looking into it.

use std::time::Duration;

use sqlx::Row as _;

use super::{
    batch::moment,
    connection::Session,
    literal::Argument,
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::{
    record::Timestamp,
    store::{Completion, Lease, LeaseEnd, StoreError, StoreErrorKind},
};

const CHANGING: &str = "the lease could not be changed";

/// Renews durably, like a claim. After a crash of the server, a lease must not end earlier than its
/// holder was told. Otherwise another attempt would take over from one that is rightly still
/// running.
pub(super) async fn renew(
    store: &PostgresStore,
    lease: &Lease,
    period: Duration,
) -> Result<LeaseEnd, StoreError> {
    renew_by(store, lease, period, None).await
}

/// Renews after the step `before`, in its transaction.
pub(super) async fn renew_by(
    store: &PostgresStore,
    lease: &Lease,
    period: Duration,
    before: Option<Step>,
) -> Result<LeaseEnd, StoreError> {
    let period = [Argument::interval(period)];
    let renew = |tries| change(tries, lease, [before, None], Step::Renew, &period);
    let reserved = &store.inner.reserved;
    match renew(Tries::reserved(store, CHANGING)).await {
        Ok(LeaseEnd::Done(at)) => {
            reserved.has_renewed();
            Ok(LeaseEnd::Done(at))
        }
        Err(error) if error.is_transient() => Err(error),
        Ok(LeaseEnd::Fenced) if reserved.renews() => Ok(LeaseEnd::Fenced),
        // That connection may lack what the pool's hooks set up on the pool's connections.
        Ok(LeaseEnd::Fenced) | Err(_) => renew(Tries::new(store, CHANGING)).await,
    }
}

pub(super) async fn complete(
    store: &PostgresStore,
    lease: &Lease,
    completion: &Completion,
) -> Result<LeaseEnd, StoreError> {
    // A caller is answered with this result: it must be there after a crash of the server. The
    // statements see to that.
    let leisure = store.inner.asynchronous_completions;
    let around = [None, leisure.then_some(Step::AtLeisure)];
    let tries = Tries::new(store, CHANGING);
    let result = Argument::completion(completion);
    let ended = match &completion.guard {
        None => change(tries, lease, around, Step::Complete, &result).await,
        Some(guard) => {
            let kept = [Argument::interval(completion.retention_of_guard())];
            let both = [&result[..], &Argument::attempt(guard), &kept].concat();
            change(tries, lease, around, Step::CompleteBoth, &both).await
        }
    };
    if let Ok(LeaseEnd::Done(_)) = ended {
        store.inner.completed.insert(lease.id);
    }
    ended
}

pub(super) async fn release(
    store: &PostgresStore,
    lease: &Lease,
    keep_origin: Duration,
) -> Result<LeaseEnd, StoreError> {
    let tries = Tries::new(store, CHANGING);
    if keep_origin.is_zero() {
        return change(tries, lease, [None; 2], Step::Release, &[]).await;
    }
    let kept = [Argument::interval(keep_origin)];
    change(tries, lease, [None; 2], Step::Keep, &kept).await
}

pub(super) async fn abandon(store: &PostgresStore, lease: &Lease) -> Result<LeaseEnd, StoreError> {
    let tries = Tries::new(store, CHANGING);
    change(
        tries,
        lease,
        [None, Some(Step::AtLeisure)],
        Step::Abandon,
        &[],
    )
    .await
}

/// Looks through the whole table. It is asked only while a secret is being replaced.
pub(super) async fn has_unsettled(
    store: &PostgresStore,
    age: Duration,
) -> Result<bool, StoreError> {
    let mut tries = Tries::patient(
        store,
        "the calls that are not settled could not be looked up",
    );
    let session = tries.session().await?;
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::Unsettled, &[Argument::interval(age)])
    });
    let (session, answer) = asked.await?.through();
    session.release();
    let found = answer.one(Step::Unsettled).and_then(|row| row.try_get(0));
    found.map_err(|error| tries.failed(error))
}

/// Runs one guarded statement, with a step before and after it: it changes a row under the row's own
/// token, or not at all. If the answer is lost, it asks again. A release that keeps nothing is an
/// exception: it looks like a removal by somebody else, so it then counts as fenced.
async fn change(
    mut tries: Tries<'_>,
    lease: &Lease,
    [before, after]: [Option<Step>; 2],
    step: Step,
    rest: &[Argument<'_>],
) -> Result<LeaseEnd, StoreError> {
    let session = tries.session().await?;
    let arguments = [&Argument::attempt(lease), rest].concat();
    let changed = tries.run(session, Purpose::Commit, |batch, _| {
        let begun = batch.begin_short();
        let begun = match before {
            Some(before) => begun.call(before, &arguments[..2]),
            None => begun,
        };
        let changed = begun.call(step, &arguments);
        // The last word before the COMMIT counts.
        let changed = match after {
            Some(after) => changed.steps([after]),
            None => changed,
        };
        changed.steps([Step::Commit])
    });
    let (session, answer) = changed.await?.through();
    let (session, at) = match (answer.row(step), step) {
        // The engine repeats a completion, so an earlier one may have done the work.
        (None, Step::Complete | Step::CompleteBoth) => {
            let session = until_not_ending(&mut tries, session, &arguments[..2]).await?;
            done_before(&mut tries, session, Step::CompletedAs, &arguments[..3]).await?
        }
        (None, Step::Abandon | Step::Keep) if tries.may_be_committed => {
            done_before(&mut tries, session, Step::EndedAs, &arguments[..2]).await?
        }
        (row, _) => (session, row.map(moment).transpose()),
    };
    session.release();
    let at = at.map_err(|error| tries.failed(error))?;
    Ok(at.map_or(LeaseEnd::Fenced, LeaseEnd::Done))
}

/// An earlier try that wrote the result in time may still wait for its COMMIT. Until that has ended, nobody can say
/// that the attempt is fenced. Once it has, the next statement sees what came of it.
async fn until_not_ending(
    tries: &mut Tries<'_>,
    session: Session,
    attempt: &[Argument<'_>],
) -> Result<Session, StoreError> {
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::Ending, attempt)
    });
    let (session, answer) = asked.await?.through();
    let row = answer.row(Step::Ending);
    let is_ending = row.map(|row| row.try_get(0)).transpose();
    if is_ending.map_err(|error| tries.failed(error))? != Some(true) {
        return Ok(session);
    }
    session.release();
    Err(StoreError::new(
        StoreErrorKind::Busy,
        format!("{CHANGING}: a change of it waits for its COMMIT"),
    ))
}

/// Finds out when a statement whose answer was lost did its work: the record is as the statement
/// would leave it, and nobody else can have done that under this token. `None` if it did not.
async fn done_before(
    tries: &mut Tries<'_>,
    session: Session,
    question: Step,
    arguments: &[Argument<'_>],
) -> Result<(Session, Result<Option<Timestamp>, sqlx::Error>), StoreError> {
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(question, arguments)
    });
    let (session, answer) = asked.await?.through();
    let at = answer.row(question).map(moment).transpose();
    Ok((session, at))
}
