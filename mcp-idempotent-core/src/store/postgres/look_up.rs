//! Looking up a record, and reading it.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{Row as _, postgres::PgRow};

use super::{
    batch::{Batch, BatchRun},
    connection::Session,
    literal::{Argument, unhex},
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
    watch::{Holder, holder_of},
};
use crate::{
    fingerprint::Fingerprint,
    record::{Record, RecordState, Timestamp},
    store::{Claim, Inspected, StoreError},
};

pub(super) async fn look_up(
    store: &PostgresStore,
    claim: &Claim,
) -> Result<Option<Record>, StoreError> {
    let mut tries = Tries::new(store, "the look-up failed");
    let session = tries.session().await?;
    let (session, stored) = look_up_on(&mut tries, session, claim, Room::Leave).await?;
    session.release();
    Ok(stored.map(|stored| stored.record))
}

/// What is known about a key. It does not take the key's lock.
///
/// Taking the lock, even for a moment, could make a concurrent call believe that its key is in use.
/// So the server's table of locks is read instead, and the records in a later statement. If a lock
/// was released in between, its record is already visible.
pub(super) async fn inspect(store: &PostgresStore, claim: &Claim) -> Result<Inspected, StoreError> {
    let mut tries = Tries::new(store, "the key's lock could not be looked up");
    let holder = holder_of(&mut tries, store.inner.locks.of_key(claim)).await?;
    Ok(match look_up(store, claim).await? {
        Some(record) => Inspected::Found(record),
        None if holder != Holder::Nobody => Inspected::InProgress,
        None => Inspected::NotSeen,
    })
}

/// Whether a look-up removes an expired record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Leave,
    /// Removes it, for a claim that follows. In a serializable transaction, even looking for an
    /// expired record would make unrelated calls fail to serialise.
    Make,
}

/// Looks up a record, on a connection outside any transaction.
pub(super) async fn look_up_on(
    tries: &mut Tries<'_>,
    session: Session,
    claim: &Claim,
    room: Room,
) -> Result<(Session, Option<Stored>), StoreError> {
    // A serializable look-up would take part in other calls' conflicts.
    let in_transaction = room == Room::Make || tries.store.is_serializable();
    let record = Argument::record(claim);
    let found = find(tries, session, |batch, _| match room {
        Room::Make => batch
            .steps([Step::BeginReadCommitted])
            .call(Step::Expire, &record)
            .call(Step::LookUp, &record)
            .steps([Step::Commit]),
        Room::Leave if in_transaction => batch
            .steps([Step::BeginReadOnly])
            .call(Step::LookUp, &record)
            .steps([Step::Commit]),
        Room::Leave => batch.call(Step::LookUp, &record),
    });
    let (session, stored, _) = found.await?;
    Ok((session, stored))
}

/// Whether a batch is the first to look for a record, or looks once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    First,
    Second,
}

/// Runs a batch that looks up a record, in one round trip. A record in doubt takes a second one: see
/// [`Stored::may_be_ending`].
pub(super) async fn find<'s>(
    tries: &mut Tries<'s>,
    mut session: Session,
    mut write: impl FnMut(Batch<'s>, Look) -> Batch<'s>,
) -> Result<(Session, Option<Stored>, BatchRun), StoreError> {
    let mut look = Look::First;
    loop {
        let looked = tries.run(session, Purpose::Read, |batch, _| write(batch, look));
        let answer;
        (session, answer) = looked.await?.through();
        let stored = answer.row(Step::LookUp).map(Stored::read).transpose();
        let stored = stored.map_err(|error| tries.failed(error))?;
        if look == Look::Second || !stored.as_ref().is_some_and(Stored::may_be_ending) {
            return Ok((session, stored, answer));
        }
        look = Look::Second;
    }
}

/// A record, and the token or mark under which it was written.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) token: i64,
}

impl Stored {
    /// Whether the statement that read this may have missed the end of its attempt: an end that was written
    /// before the lease's, and whose COMMIT came only just now. Nothing can have been written since, so the
    /// next statement sees how it is.
    const fn may_be_ending(&self) -> bool {
        matches!(self.record.state, RecordState::InDoubt { .. })
    }

    pub(super) fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let fingerprint = bytea(row, 0)?
            .and_then(|stored| Fingerprint::from_stored(&stored))
            .ok_or_else(|| sqlx::Error::Decode("a stored fingerprint is not 33 bytes".into()))?;
        let state = match row.try_get::<i32, _>(1)? {
            0 => RecordState::InProgress {
                lease_remaining: lease_remaining(row)?,
            },
            1 => RecordState::Completed {
                response: bytea(row, 3)?.map(Bytes::from),
                at: moment_at(row)?.ok_or(sqlx::Error::RowNotFound)?,
            },
            2 => RecordState::InDoubt {
                token: row.try_get(5)?,
                attempts: attempts(row, 6)?,
                // A record that somebody wrote by hand may not have it.
                since: moment_at(row)?.unwrap_or(Timestamp::from_micros(0)),
            },
            _ => RecordState::Expired,
        };
        Ok(Self {
            record: Record::new(fingerprint, state),
            token: row.try_get(5)?,
        })
    }
}

fn bytea(row: &PgRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
    row.try_get::<Option<&str>, _>(column)?
        .map(unhex)
        .transpose()
}

fn lease_remaining(row: &PgRow) -> Result<Duration, sqlx::Error> {
    let micros: i64 = row.try_get(2)?;
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// When the record was completed, or since when it has been in doubt.
fn moment_at(row: &PgRow) -> Result<Option<Timestamp>, sqlx::Error> {
    let micros: Option<i64> = row.try_get(4)?;
    Ok(micros.map(Timestamp::from_micros))
}

/// Reads the number of attempts.
pub(super) fn attempts(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    let attempts: Option<i32> = row.try_get(column)?;
    Ok(attempts.map_or(1, |attempts| u32::try_from(attempts).unwrap_or(1)))
}
