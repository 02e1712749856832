//! Looking up a record, and reading it.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Row as _,
    postgres::{PgRow, PgValueFormat},
};

use super::{
    batch::Batch,
    connection::{Session, drain},
    error,
    literal::{Argument, unhex},
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::{
    fingerprint::Fingerprint,
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    store::{Claim, Inspected, StoreError},
};

pub(super) async fn look_up(
    store: &PostgresStore,
    claim: &Claim,
) -> Result<Option<Record>, StoreError> {
    let mut tries = Tries::new(store, "the look-up failed");
    let session = store.session().await?;
    let (session, stored) = look_up_on(&mut tries, session, claim, Room::Leave).await?;
    session.release();
    Ok(stored.map(|stored| stored.record))
}

/// What is known about a key. It does not take the key's lock.
///
/// Taking the lock, even for a moment, could make a concurrent call believe that its key is in use. So
/// the server's table of locks is read instead, and the records in a later statement. If a lock was
/// released in between, its record is already visible.
pub(super) async fn inspect(store: &PostgresStore, claim: &Claim) -> Result<Inspected, StoreError> {
    let failed = |error| store.error("the key's lock could not be looked up", error);
    let mut session = store.session().await?;
    let key = store.inner.locks.of_key(claim);
    let batch = Batch::new(store).call(Step::IsHeld, &[Argument::Integer(key)]);
    let answer = batch.run(&mut session).await.into_result();
    let held = answer
        .and_then(|answer| answer.one(Step::IsHeld)?.try_get::<bool, _>(0))
        .map_err(failed)?;
    session.release();
    Ok(match look_up(store, claim).await? {
        Some(record) => Inspected::Found(record),
        None if held => Inspected::InProgress,
        None => Inspected::NotSeen,
    })
}

/// Whether a look-up removes an expired record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    Leave,
    /// Removes it, for a claim that follows. In a serializable transaction, even looking for an expired
    /// record would make unrelated calls fail to serialise.
    Make,
}

/// Looks up a record in one round trip, on a connection outside any transaction.
pub(super) async fn look_up_on(
    tries: &mut Tries<'_>,
    mut session: Session,
    claim: &Claim,
    room: Room,
) -> Result<(Session, Option<Stored>), StoreError> {
    let store = tries.store;
    // A serializable look-up would take part in other calls' conflicts.
    let in_transaction = room == Room::Make || store.is_serializable();
    if !in_transaction {
        match look_up_bound(store, &mut session, claim).await {
            Ok(Some(stored)) => return Ok((session, stored)),
            Ok(None) => {}
            Err(error) if error::is_connection_lost(&error) => {
                drop(session);
                session = store.session().await?;
            }
            Err(error) => return Err(tries.failed(error)),
        }
    }
    let record = Argument::record(claim);
    let looked = tries.run(session, Purpose::Read, |batch, _| match room {
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
    let (session, answer) = looked.await?.through();
    let row = answer.row(Step::LookUp).map(Stored::read).transpose();
    Ok((session, row.map_err(|error| tries.failed(error))?))
}

/// Looks up a record with one of sqlx's own statements, with bound values. It is the cheapest way if a
/// look-up has a round trip to itself. `None` if it must not be used: the name of such a statement is not
/// a hash, so behind a pooler it may be anybody's.
async fn look_up_bound(
    store: &PostgresStore,
    connection: &mut PgConnection,
    claim: &Claim,
) -> Result<Option<Option<Stored>>, sqlx::Error> {
    let (names_last, bound) = (&store.inner.names_last, &store.inner.bound);
    let is_open = names_last.load(Ordering::Relaxed) && bound.load(Ordering::Relaxed);
    if !is_open || !store.prepared() {
        return Ok(None);
    }
    drain(connection).await?;
    let text = store.inner.statements.text(Step::LookUpBound);
    let found = sqlx::query(AssertSqlSafe(text))
        .bind(claim.id.as_bytes().as_slice())
        .bind(claim.on_expired == OnExpired::Refuse)
        .fetch_optional(&mut *connection)
        .await;
    match found {
        Ok(row) => {
            // A pool that keeps no statements prepares this one every time, which takes one more
            // round trip and leaves the statement on the server.
            if connection.cached_statements_size() == 0 {
                bound.store(false, Ordering::Relaxed);
            }
            row.as_ref().map(Stored::read).transpose().map(Some)
        }
        // sqlx's statements are gone (`DEALLOCATE ALL`), or belong to another session (a pooler). The
        // other way finds out which.
        Err(error) if error::is_about_prepared_name(&error) => {
            names_last.store(false, Ordering::Relaxed);
            connection.clear_cached_statements().await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// A record, and the token or mark under which it was written.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) token: i64,
}

impl Stored {
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

/// Whether a row came from `look_up_bound.sql`, with bytes and times as the server keeps them. Otherwise
/// it came from `look_up.sql`, with hexadecimal digits and microseconds.
fn is_bound(row: &PgRow) -> Result<bool, sqlx::Error> {
    Ok(row.try_get_raw(0)?.format() == PgValueFormat::Binary)
}

fn bytea(row: &PgRow, column: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
    if is_bound(row)? {
        return row.try_get(column);
    }
    row.try_get::<Option<&str>, _>(column)?
        .map(unhex)
        .transpose()
}

fn lease_remaining(row: &PgRow) -> Result<Duration, sqlx::Error> {
    let micros = if is_bound(row)? {
        let until: i64 = row.try_get_unchecked(2)?;
        let now: i64 = row.try_get_unchecked(7)?;
        until.saturating_sub(now)
    } else {
        row.try_get(2)?
    };
    Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

/// When the record was completed, or since when it has been in doubt.
fn moment_at(row: &PgRow) -> Result<Option<Timestamp>, sqlx::Error> {
    /// 2000-01-01, from which Postgres counts, in microseconds of the Unix epoch.
    const EPOCH: i64 = 946_684_800_000_000;
    let micros = if is_bound(row)? {
        // The same eight bytes as a `bigint`.
        row.try_get_unchecked::<Option<i64>, _>(4)?
            .map(|micros| micros.saturating_add(EPOCH))
    } else {
        row.try_get(4)?
    };
    Ok(micros.map(Timestamp::from_micros))
}

/// Reads the number of attempts.
pub(super) fn attempts(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    let attempts: i32 = row.try_get(column)?;
    Ok(u32::try_from(attempts).unwrap_or(1))
}
