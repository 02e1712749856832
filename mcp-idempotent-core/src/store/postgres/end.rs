//! Ending a transaction: record and commit go out in one round trip.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{AssertSqlSafe, Row as _};

use super::{
    batch::{Batch, BatchRun, moment},
    bound::within,
    connection::{PgTransaction, drain},
    error::is_connection_lost,
    fate::{OwnView, Stopped, ended_by_handler, stopped, undo_ours},
    literal::{Argument, interval, labels},
    lock::Mark,
    recover::{Sought, TransactionId},
    statement::Step,
    store::PostgresStore,
};
use crate::{
    record::Timestamp,
    store::{Claim, Completion, End, Ended, Lease},
};

/// The text of a row's place in its table (`ctid`) is shorter than this.
const PLACE_LENGTH: usize = 32;

/// A handler that is quicker than this is not worth another round trip.
const QUICK: Duration = Duration::from_secs(1);

pub(super) async fn end(
    store: &PostgresStore,
    transaction: PgTransaction,
    claim: Option<&Claim>,
    end: End,
) -> Ended {
    match (end, claim) {
        (End::Commit(completion), Some(claim)) => {
            commit(store, transaction, claim, &completion).await
        }
        (End::Commit(_) | End::CommitUnrecorded, claim) => {
            Box::pin(commit_unrecorded(store, transaction, claim)).await
        }
        (End::RollBackAndRecord(completion), Some(claim)) => {
            Box::pin(record_after_rollback(
                store,
                transaction,
                claim,
                &completion,
            ))
            .await
        }
        (End::Complete(lease, completion), _) => {
            Box::pin(complete_with(store, transaction, &lease, &completion)).await
        }
        (End::RollBackAndRecord(_) | End::RollBack, claim) => {
            Box::pin(roll_back_unrecorded(store, transaction, claim)).await
        }
    }
}

async fn commit(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    claim: &Claim,
    completion: &Completion,
) -> Ended {
    let mark = transaction.mark;
    let size = completion.response.as_ref().map_or(0, Bytes::len);
    let finished = if size <= PostgresStore::INLINE_RESULT_BYTES {
        let batch = insert_record(ours(store), mark, claim, completion);
        commit_recorded(store, &mut transaction, batch, insert_step(completion)).await
    } else {
        Box::pin(commit_bound(store, &mut transaction, claim, completion)).await
    };
    let sought = Sought::Record(claim, mark);
    match after_batch(store, transaction, Some(claim), sought, finished).await {
        Ended::AsAsked(at) => {
            store.inner.completed.insert(claim.id);
            Ended::AsAsked(at)
        }
        // The key's lock is held, so only the guard can have been lost.
        Ended::LostInProgress => Ended::Fenced,
        ended => ended,
    }
}

/// What the end of the finishing batch means for the transaction.
async fn after_batch(
    store: &PostgresStore,
    transaction: PgTransaction,
    claim: Option<&Claim>,
    sought: Sought<'_>,
    finished: Result<Timestamp, Stopped>,
) -> Ended {
    match finished {
        Ok(at) => {
            transaction.session.release_ended();
            Ended::AsAsked(at)
        }
        // Boxed, because it is rare: otherwise every call's future would have room for it.
        Err(why) => Box::pin(stopped(store, transaction, claim, sought, why)).await,
    }
}

/// Completes the guard in the same transaction, if there is one.
fn with_guard<'s>(batch: Batch<'s>, completion: &Completion) -> Batch<'s> {
    match &completion.guard {
        Some(guard) => {
            let [response, _, tombstone] = Argument::completion(completion);
            let kept = Argument::interval(completion.retention_of_guard());
            complete_here(batch, guard, &[response, kept, tombstone])
        }
        None => batch,
    }
}

fn complete_here<'s>(batch: Batch<'s>, lease: &Lease, result: &[Argument<'_>]) -> Batch<'s> {
    batch.call(
        Step::CompleteHere,
        &[&Argument::attempt(lease)[..], result].concat(),
    )
}

/// The few records that leave a tombstone have a statement of their own, so that the others do not
/// pay for computing when it ends.
fn insert_step(completion: &Completion) -> Step {
    if completion.tombstone.is_zero() {
        Step::Finish
    } else {
        Step::FinishKept
    }
}

/// Inserts the finished record.
pub(super) fn insert_record<'s>(
    batch: Batch<'s>,
    mark: Mark,
    claim: &Claim,
    completion: &Completion,
) -> Batch<'s> {
    let batch = with_guard(batch, completion);
    let [response, retention, tombstone] = Argument::completion(completion);
    let (id, fingerprint) = (claim.id.as_bytes(), claim.fingerprint.to_stored());
    let identity = [id.as_slice(), &fingerprint].concat();
    let arguments = [
        Argument::Bytes(&identity),
        response,
        Argument::Integer(mark.0),
        Argument::Labels(claim),
        retention,
        tombstone,
    ];
    let step = insert_step(completion);
    match step {
        Step::FinishKept => batch.call(step, &arguments),
        _ => batch.call(step, &arguments[..5]),
    }
}

/// A large result costs less as a bound value, although that takes two more round trips. A bound
/// statement is sent alone, so nothing can check whose transaction it runs in. If the handler has
/// committed, the statement commits by itself. So it writes a record in doubt, which is the truth
/// in that case.
async fn commit_bound(
    store: &PostgresStore,
    transaction: &mut PgTransaction,
    claim: &Claim,
    completion: &Completion,
) -> Result<Timestamp, Stopped> {
    let mark = transaction.mark;
    let bound = store.inner.answer_timeout;
    drain(transaction, bound)
        .await
        .map_err(Stopped::before_commit_was_sent)?;
    let text = store.inner.statements.text(Step::DoubtBound);
    let doubt = sqlx::query(AssertSqlSafe(text))
        .bind(claim.id.as_bytes().as_slice())
        .bind(claim.fingerprint.to_stored().to_vec())
        .bind(mark.0)
        .bind(completion.response.as_deref())
        .bind(labels(claim))
        .bind(interval(claim.in_doubt_retention))
        // No name on the server: behind a pooler, the name that sqlx uses may be another client's.
        .persistent(false)
        .fetch_one(&mut **transaction);
    let row = within(bound, doubt)
        .await
        .map_err(Stopped::before_commit_was_sent)?;
    let place = row
        .try_get::<&str, _>(0)
        .map_err(Stopped::before_commit_was_sent)?;
    let arguments = [
        Argument::Plain(place, PLACE_LENGTH),
        Argument::Integer(mark.0),
        Argument::interval(completion.retention),
        Argument::interval(completion.tombstone),
    ];
    let batch = with_guard(ours(store), completion).call(Step::Settle, &arguments);
    commit_recorded(store, transaction, batch, Step::Settle).await
}

async fn commit_unrecorded(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    claim: Option<&Claim>,
) -> Ended {
    let finished = match still_lives(store, &mut transaction).await {
        Ok(number) => {
            let batch = ours(store).steps([Step::Check]);
            let finished = commit_timed_by(&mut transaction, batch, Step::Check).await;
            finished.map_err(|why| why.about(number))
        }
        Err(error) => Err(Stopped::before_commit_was_sent(error)),
    };
    after_batch(store, transaction, claim, Sought::Nothing, finished).await
}

/// If the connection is lost at the COMMIT, there is no record that could tell whether it was
/// carried out. So the session is asked beforehand whether it lives, and for its transaction's
/// number, unless the handler was quick.
async fn still_lives(
    store: &PostgresStore,
    transaction: &mut PgTransaction,
) -> Result<TransactionId, sqlx::Error> {
    if transaction.begun.elapsed() < QUICK.min(store.inner.session_checked_every) {
        return Ok(TransactionId::Unheard);
    }
    let batch = Batch::new(store).steps([Step::Check]);
    let answer = batch.run(transaction).await;
    match answer.error {
        Some(error) if is_connection_lost(&error) => Err(error),
        // The finishing batch finds out what the error means.
        Some(_) => Ok(TransactionId::Unheard),
        None => Ok(TransactionId::heard(&answer)),
    }
}

/// The guarded completion of a lease goes out with the commit, in one round trip. It holds its row
/// lock until the commit is visible, so a takeover waits for it.
async fn complete_with(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    lease: &Lease,
    completion: &Completion,
) -> Ended {
    let opened = ours(store);
    // The handler may have acted outside, so its record must not be lost in a crash of the server.
    // With asynchronous completions the session's own setting decides, because the handler's writes
    // share it.
    let opened = if store.inner.asynchronous_completions {
        opened
    } else {
        opened.steps([Step::Durably])
    };
    // The lease goes first, because the first row tells the time.
    let completed = complete_here(opened, lease, &Argument::completion(completion));
    let batch = with_guard(completed, completion);
    let finished = commit_timed_by(&mut transaction, batch, Step::CompleteHere).await;
    let sought = Sought::Completion(lease, transaction.mark);
    after_batch(store, transaction, None, sought, finished).await
}

async fn record_after_rollback(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    claim: &Claim,
    completion: &Completion,
) -> Ended {
    // The second transaction contains nothing from the handler.
    let mark = Mark::new();
    let made_room = ours(store)
        .steps([Step::RollBack, Step::BeginReadCommitted])
        .try_locks(store, Step::LockKey, claim)
        .call(Step::Expire, &Argument::record(claim))
        .call(Step::Seen, &[Argument::Bytes(claim.id.as_bytes())]);
    let batch = insert_record(made_room, mark, claim, completion);
    let finished = commit_recorded(store, &mut transaction, batch, insert_step(completion)).await;
    let sought = Sought::Record(claim, mark);
    match after_batch(store, transaction, Some(claim), sought, finished).await {
        // The handler's writes are rolled back, with or without a record.
        Ended::Unknown(error) => Ended::Aborted(error),
        ended => ended,
    }
}

async fn roll_back_unrecorded(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    claim: Option<&Claim>,
) -> Ended {
    // A statement that the handler abandoned runs first. It may wait for a lock, or for data that
    // never arrives. Closing the session rolls back as well.
    match undo_ours(store, &mut transaction).await {
        OwnView::Undone(at) => {
            transaction.session.release_ended();
            Ended::AsAsked(at)
        }
        OwnView::NotOurs => ended_by_handler(store, transaction, claim).await,
        // A session that is gone has rolled back, and so has one that is closed now.
        OwnView::Unclear(error) => Ended::Aborted(store.error("the session ended", error)),
    }
}

/// The start of a finishing batch, which proves that the transaction is still ours. The savepoint
/// ends with the transaction, no matter who ends it, and RELEASE then fails. It also fails in an
/// aborted transaction.
fn ours(store: &PostgresStore) -> Batch<'_> {
    Batch::new(store).steps([Step::ReleaseSavepoint])
}

/// Runs a finishing batch whose step `recorded` writes the record, and commits. Now and then it
/// asks for the time.
async fn commit_recorded(
    store: &PostgresStore,
    transaction: &mut PgTransaction,
    batch: Batch<'_>,
    recorded: Step,
) -> Result<Timestamp, Stopped> {
    let clock = &store.inner.clock;
    let known = clock.now();
    let batch = match known {
        Some(_) => batch,
        None => batch.steps([Step::Moment]),
    };
    let answer = committing(transaction, batch).await?;
    if answer.affected(recorded) != 1 {
        return Err(Stopped::unreadable(sqlx::Error::RowNotFound));
    }
    match known {
        Some(at) => Ok(at),
        None => {
            let at = moment_of(&answer, Step::Moment)?;
            clock.has_told(at);
            Ok(at)
        }
    }
}

/// Runs a finishing batch, and commits. Its step `teller` returns the time.
async fn commit_timed_by(
    transaction: &mut PgTransaction,
    batch: Batch<'_>,
    teller: Step,
) -> Result<Timestamp, Stopped> {
    moment_of(&committing(transaction, batch).await?, teller)
}

fn moment_of(answer: &BatchRun, teller: Step) -> Result<Timestamp, Stopped> {
    let row = answer.one(teller);
    row.and_then(moment).map_err(Stopped::unreadable)
}

async fn committing(
    transaction: &mut PgTransaction,
    batch: Batch<'_>,
) -> Result<BatchRun, Stopped> {
    drain(transaction, batch.bound())
        .await
        .map_err(Stopped::before_commit_was_sent)?;
    let batch = batch.steps([transaction.session.commit()]);
    let mut answer = batch.run(transaction).await;
    match answer.error.take() {
        Some(error) => Err(Stopped::at_commit(error, &answer)),
        None => Ok(answer),
    }
}
