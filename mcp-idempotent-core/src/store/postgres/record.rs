//! Looking a record up, and reading what was found.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, Row,
    postgres::{PgRow, PgValueFormat},
};

use super::{
    Inner, PostgresStore,
    connection::drain,
    error, id_arguments,
    statement::{Argument, Name, bytes, unhex},
};
use crate::{
    fingerprint::Fingerprint,
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    store::Claim,
};

/// A record with the token or mark that it was written under.
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
                at: moment_of(row)?.ok_or(sqlx::Error::RowNotFound)?,
            },
            2 => RecordState::InDoubt {
                token: row.try_get(5)?,
                attempts: attempts(row, 6)?,
                // A record that somebody wrote by hand may not say.
                since: moment_of(row)?.unwrap_or(Timestamp::from_micros(0)),
            },
            _ => RecordState::Expired,
        };
        Ok(Self {
            record: Record::new(fingerprint, state),
            token: row.try_get(5)?,
        })
    }
}

/// Whether a row came from `look_up_bound`, with bytes and moments as the server keeps them, and
/// not from `look_up`, with hexadecimal digits and microseconds.
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

/// When it was completed, or since when it is in doubt.
fn moment_of(row: &PgRow) -> Result<Option<Timestamp>, sqlx::Error> {
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

impl PostgresStore {
    /// Looks a record up by a statement of sqlx's, whose values are bound: the cheapest way there
    /// is, where a look-up has a round trip to itself. `None` where that way is closed: behind a
    /// pooler such a statement, whose name is no hash, may be anybody's.
    pub(super) async fn look_up_bound(
        &self,
        connection: &mut PgConnection,
        claim: &Claim,
    ) -> Result<Option<Option<Stored>>, sqlx::Error> {
        let Inner {
            names_last, bound, ..
        } = &*self.inner;
        let is_open = names_last.load(Ordering::Relaxed) && bound.load(Ordering::Relaxed);
        if !is_open || !self.prepared() {
            return Ok(None);
        }
        drain(connection).await?;
        let found = sqlx::query(AssertSqlSafe(self.inner.statements.look_up_bound()))
            .bind(claim.id.as_bytes().as_slice())
            .bind(claim.on_expired == OnExpired::Refuse)
            .fetch_optional(&mut *connection)
            .await;
        match found {
            Ok(row) => {
                // A pool that keeps no statements prepares this one each time, for another round
                // trip, and leaves it with the server.
                if connection.cached_statements_size() == 0 {
                    bound.store(false, Ordering::Relaxed);
                }
                row.as_ref().map(Stored::read).transpose().map(Some)
            }
            // sqlx's statements are gone (`DEALLOCATE ALL`), or another session's (a pooler).
            // The other way finds out which.
            Err(error) if error::is_about_prepared_name(&error) => {
                names_last.store(false, Ordering::Relaxed);
                connection.clear_cached_statements().await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn look_up_call(&self, claim: &Claim) -> String {
        self.call(Name::LookUp, &id_arguments(claim))
    }

    pub(super) fn seen_call(&self, claim: &Claim) -> String {
        self.call(Name::Seen, &[bytes(claim.id.as_bytes())])
    }

    pub(super) fn push_seen(&self, batch: &mut String, claim: &Claim) {
        self.push(
            batch,
            Name::Seen,
            &[Argument::Bytes(&[claim.id.as_bytes()])],
        );
    }
}

/// A count of attempts.
pub(super) fn attempts(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    let attempts: i32 = row.try_get(column)?;
    Ok(u32::try_from(attempts).unwrap_or(1))
}

/// What a finishing statement returned: its moment.
pub(super) fn moment(row: &PgRow) -> Result<Timestamp, sqlx::Error> {
    // The last column, whatever else the statement selects.
    row.try_get(row.len() - 1).map(Timestamp::from_micros)
}
