//! Claiming in transaction mode: open, lock and look up in one round trip.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::FutureExt as _;
use sqlx::{Row as _, postgres::PgRow};
use tokio::{task::unconstrained, time::Instant};

use super::{
    batch::Batch,
    connection::{PgTransaction, Session},
    error,
    literal::{Argument, bytes_of},
    lock::Mark,
    look_up::{Look, Room, find, look_up_on},
    statement::Step,
    store::PostgresStore,
    tries::{Outcome, Purpose, Raised, Tries},
};
use crate::{
    fingerprint::Fingerprint,
    record::{Record, RecordState, Timestamp},
    store::{CallInfo, Claim, Claimed, StoreError},
};

pub(super) async fn begin(
    store: &PostgresStore,
    call: &CallInfo,
    claim: Option<&Claim>,
) -> Result<Claimed<PgTransaction>, StoreError> {
    let mut tries = Tries::new(store, "the claim failed");
    let mut session = tries.session().await?;
    if let Some(claim) = claim
        && store.inner.completed.has(claim.id)
        && !store.is_serializable()
    {
        let found;
        (session, found) = Box::pin(see_again(&mut tries, session, claim)).await?;
        if let Some(record) = found {
            session.release();
            return Ok(Claimed::Found(record));
        }
    }
    loop {
        let serializable = store.is_serializable();
        if let Some(claim) = claim
            && (serializable || store.inner.lookup_first)
        {
            let room = if serializable {
                Room::Make
            } else {
                Room::Leave
            };
            let found;
            (session, found) = Box::pin(look_up_on(&mut tries, session, claim, room)).await?;
            if let Some(stored) = found {
                session.release();
                return Ok(Claimed::Found(stored.record));
            }
        }
        let mut mark = Mark::new();
        let opened = tries
            .run(session, Purpose::Open, |batch, session| {
                // A lost session may still hold the lock of the earlier mark.
                mark = Mark::new();
                opening(store, batch, mark, claim, serializable, session.is_own())
            })
            .await?;
        let (aborted, raised) = match opened {
            Outcome::Through(opened, answer) => {
                if !serializable {
                    store.has_begun();
                }
                if let Some(row) = answer.row(Step::Find) {
                    if let Some(record) = replayed(row) {
                        claim.inspect(|claim| store.inner.completed.insert(claim.id));
                        leave(store, opened);
                        return Ok(Claimed::Found(record));
                    }
                    (opened, Raised::RecordExists)
                } else {
                    let locks = &store.inner.locks;
                    let transaction = PgTransaction {
                        session: opened,
                        mark,
                        lock: claim.map_or_else(
                            || locks.of_transaction(mark),
                            |claim| locks.of_key(claim),
                        ),
                        begun: Instant::now(),
                    };
                    return set_up(store, transaction, call).await.map(Claimed::New);
                }
            }
            Outcome::Raised(session, raised) => (session, raised),
        };
        let Some(claim) = claim else {
            unreachable!("only a claim raises an error")
        };
        let record = Argument::record(claim);
        let next = follow_up(&mut tries, aborted, raised, claim, |batch| {
            batch.call(Step::LookUp, &record)
        });
        // Boxed, because it is rare: otherwise every call's future would have room for it.
        session = match Box::pin(next).await? {
            FollowUp::Answer(answer) => return Ok(answer),
            FollowUp::Again(session) => session,
        };
        if raised == Raised::RecordExists {
            session = Box::pin(expire(&mut tries, session, claim)).await?;
        }
    }
}

/// The result of a call that this process has lately seen completed, if it is still there.
pub(super) async fn see_again(
    tries: &mut Tries<'_>,
    session: Session,
    claim: &Claim,
) -> Result<(Session, Option<Record>), StoreError> {
    let id = [Argument::Bytes(claim.id.as_bytes())];
    let found = tries.run(session, Purpose::Read, |batch, _| {
        batch.call(Step::Find, &id)
    });
    let (session, answer) = found.await?.through();
    let record = answer.row(Step::Find).and_then(replayed);
    if record.is_none() {
        tries.store.inner.completed.remove(claim.id);
    }
    Ok((session, record))
}

/// Removes a record that is past its end.
async fn expire(
    tries: &mut Tries<'_>,
    session: Session,
    claim: &Claim,
) -> Result<Session, StoreError> {
    let record = Argument::record(claim);
    let expired = tries.run(session, Purpose::Commit, |batch, _| {
        batch
            .steps([Step::BeginReadCommitted])
            .call(Step::Expire, &record)
            .steps([Step::Commit])
    });
    Ok(expired.await?.through().0)
}

/// The row of `find.sql`, if it is a result within its retention. Otherwise, or if the session
/// writes bytes in the escape format, a look-up has to say what the record is.
fn replayed(row: &PgRow) -> Option<Record> {
    let bytes = |column| bytes_of(row.try_get_raw(column).ok()?);
    let fingerprint = bytes(0)??;
    let response = bytes(1)?;
    let state = RecordState::Completed {
        response: response.map(Bytes::from),
        at: Timestamp::from_micros(row.try_get(2).ok()?),
    };
    Some(Record::new(Fingerprint::from_stored(&fingerprint)?, state))
}

/// Rolls back without waiting for the answer, and gives the connection back. Its next user reads
/// that answer first. So a replay takes one round trip.
fn leave(store: &PostgresStore, mut session: Session) {
    let batch = Batch::new(store).steps([Step::RollBack]);
    // An exhausted budget must not hold the message back.
    let sent = unconstrained(batch.run(&mut session)).now_or_never();
    if sent.is_none_or(|answer| answer.error.is_none()) {
        session.release();
    }
}

fn opening<'s>(
    store: &PostgresStore,
    batch: Batch<'s>,
    mark: Mark,
    claim: Option<&Claim>,
    serializable: bool,
    reads_rows: bool,
) -> Batch<'s> {
    let batch = batch.steps([Step::Begin]);
    let batch = match claim {
        Some(claim) if serializable => batch.try_locks(store, Step::LockKey, claim),
        Some(claim) => {
            // Most claims need not find out whether the transaction is serializable.
            let step = if store.asks_for_isolation() {
                Step::LockKeyUnlessSerializable
            } else {
                Step::LockKey
            };
            let batch = batch.try_locks(store, step, claim);
            let step = if reads_rows { Step::Find } else { Step::Seen };
            batch.call(step, &[Argument::Bytes(claim.id.as_bytes())])
        }
        None => {
            let lock = store.inner.locks.of_transaction(mark);
            batch.call(Step::OpenUnclaimed, &[Argument::Integer(lock)])
        }
    };
    batch.steps([Step::Savepoint])
}

async fn set_up(
    store: &PostgresStore,
    mut transaction: PgTransaction,
    call: &CallInfo,
) -> Result<PgTransaction, StoreError> {
    let Some(hook) = &store.inner.on_begin else {
        return Ok(transaction);
    };
    let Err(error) = hook(&mut transaction, call).await else {
        return Ok(transaction);
    };
    let mut session = transaction.session;
    if !error::is_connection_lost(&error) {
        let batch = Batch::new(store).steps([session.roll_back()]);
        if batch.run(&mut session).await.error.is_none() {
            session.release_ended();
        }
    }
    Err(store.error("the set-up of the transaction failed", error))
}

/// What follows from a claim that raised an error.
pub(super) enum FollowUp<T> {
    Answer(Claimed<T>),
    /// Nothing is in the way any more, so try again. The connection is outside any transaction.
    Again(Session),
}

/// Finds out what a raised error means. The connection may be inside a transaction, aborted or not, or
/// outside. The later look-up shows how things stand, even if the error was already out of date.
pub(super) async fn follow_up<'s, T>(
    tries: &mut Tries<'s>,
    mut session: Session,
    raised: Raised,
    claim: &Claim,
    look_up: impl Fn(Batch<'s>) -> Batch<'s>,
) -> Result<FollowUp<T>, StoreError> {
    match raised {
        Raised::IsSerializable => {
            let serializable = &tries.store.inner.serializable;
            serializable.store(true, Ordering::Relaxed);
            let left = tries.roll_back(&mut session).await;
            left.map_err(|error| tries.failed(error))?;
            return Ok(FollowUp::Again(session));
        }
        // The call that runs may be a replay, which holds the lock until its transaction is rolled back.
        Raised::SameCallRuns | Raised::KeyIsHeld | Raised::RecordExists => {}
        Raised::IsStandby => unreachable!("a claim does not ask"),
    }
    let lock = tries.store.inner.locks.of_call(claim);
    let halves = lock.map(|half| Argument::Integer(half.cast_unsigned().into()));
    let found = find(tries, session, |batch, look| {
        let batch = look_up(match look {
            Look::First => batch.steps([Step::RollBack]),
            Look::Second => batch,
        });
        match raised {
            Raised::KeyIsHeld => batch.call(Step::Rival, &halves),
            _ => batch,
        }
    });
    let (session, stored, answer) = found.await?;
    if let Some(stored) = stored {
        session.release();
        if matches!(stored.record.state, RecordState::Completed { .. }) {
            tries.store.inner.completed.insert(claim.id);
        }
        return Ok(FollowUp::Answer(Claimed::Found(stored.record)));
    }
    let has_rival = match raised {
        Raised::RecordExists => return Ok(FollowUp::Again(session)),
        Raised::KeyIsHeld => {
            let rival = answer.one(Step::Rival).and_then(|row| row.try_get(0));
            rival.map_err(|error| tries.failed(error))?
        }
        Raised::SameCallRuns | Raised::IsSerializable | Raised::IsStandby => false,
    };
    session.release();
    // Without a rival, the attempt that holds the lock is this call's, or it is just ending.
    Ok(FollowUp::Answer(if has_rival {
        Claimed::Conflict
    } else {
        Claimed::InProgress
    }))
}
