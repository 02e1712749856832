//! A record as a row: writing and reading it.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{
    Arguments as _, Row as _, SqlStr, SqliteConnection,
    sqlite::{SqliteArguments, SqliteRow},
};

use super::{
    batch::Encoded,
    statement::{COMPLETED, EXPIRED, IN_DOUBT, IN_PROGRESS},
};
use crate::{
    fingerprint::Fingerprint,
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    store::Claim,
};

/// What is stored under a claim's id.
pub(super) enum Found {
    Nothing,
    /// A record that blocks the claim.
    Record(Record),
    /// A record that is in doubt only because its lease has ended. The result, or a renewal, may have been
    /// written in time and wait for its commit, which readers do not see. While a disk stands still, that
    /// may be for long. Whoever has the write lock sees what came of it.
    Lapsed(Record),
    /// A record that no longer counts.
    Remains,
}

/// What blocks this claim, if anything. `statement` is one of
/// [`Statements`](super::statement::Statements) that return a record.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    statement: &SqlStr,
    claim: &Claim,
) -> Result<Found, sqlx::Error> {
    let arguments = looked_up(claim).map_err(sqlx::Error::Encode)?;
    let query = sqlx::query_with(statement.clone(), arguments);
    match query.fetch_optional(connection).await? {
        None => Ok(Found::Nothing),
        Some(row) if row.len() == 1 => Ok(Found::Remains),
        Some(row) => decode(&row),
    }
}

/// The arguments of a statement that returns a record.
pub(super) fn looked_up(claim: &Claim) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&claim.id.as_bytes()[..])?;
    arguments.add(claim.on_expired == OnExpired::Refuse)?;
    Ok(arguments)
}

/// The first arguments of every statement that writes a whole record: `?1` to `?6`.
pub(super) fn written(claim: &Claim) -> Encoded {
    let mut arguments = SqliteArguments::default();
    arguments.add(&claim.id.as_bytes()[..])?;
    arguments.add(&claim.fingerprint.to_stored()[..])?;
    arguments.add(&*claim.call.tool)?;
    arguments.add(claim.application())?;
    arguments.add(claim.scope())?;
    arguments.add(claim.key_prefix.as_deref())?;
    Ok(arguments)
}

/// The record that a look-up returned.
pub(super) fn decode(row: &SqliteRow) -> Result<Found, sqlx::Error> {
    let record = record(row)?;
    // A record that was put in doubt has no lease.
    let has_lease = row.try_get::<Option<i64>, _>(4)?.is_some();
    Ok(match record.state {
        RecordState::InDoubt { .. } if has_lease => Found::Lapsed(record),
        _ => Found::Record(record),
    })
}

fn record(row: &SqliteRow) -> Result<Record, sqlx::Error> {
    let state = match row.try_get::<i64, _>(1)? {
        IN_PROGRESS => RecordState::InProgress {
            lease_remaining: Duration::from_micros(
                u64::try_from(row.try_get::<i64, _>(4)?).unwrap_or(0),
            ),
        },
        IN_DOUBT => RecordState::InDoubt {
            token: row.try_get(5)?,
            attempts: row.try_get(6)?,
            since: Timestamp::from_micros(row.try_get(3)?),
        },
        COMPLETED => RecordState::Completed {
            response: row.try_get::<Option<Vec<u8>>, _>(2)?.map(Bytes::from),
            at: Timestamp::from_micros(row.try_get(3)?),
        },
        EXPIRED => RecordState::Expired,
        other => return Err(undecodable(format!("state {other}"))),
    };
    let fingerprint = Fingerprint::from_stored(row.try_get(0)?)
        .ok_or_else(|| undecodable("a fingerprint of the wrong length".to_owned()))?;
    Ok(Record::new(fingerprint, state))
}

pub(super) fn undecodable(what: String) -> sqlx::Error {
    sqlx::Error::Decode(format!("a record has {what}").into())
}
