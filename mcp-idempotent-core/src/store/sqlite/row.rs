//! A record as it stands in its row.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{Row as _, SqlStr, SqliteConnection, sqlite::SqliteRow};

use super::statement::{COMPLETED, EXPIRED, IN_DOUBT, IN_PROGRESS};
use crate::{
    fingerprint::Fingerprint,
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    store::Claim,
};

/// What stands under a record id.
#[derive(Debug)]
pub(super) enum Seen {
    /// Nothing, or nothing that counts for this claim.
    Absent {
        /// A row past its expiry is there, and has to go before a new one can come.
        expired_row: bool,
    },
    /// A record that decides.
    Record(Record),
}

/// Looks a record up.
pub(super) async fn look_up(
    connection: &mut SqliteConnection,
    statement: &SqlStr,
    claim: &Claim,
) -> Result<Seen, sqlx::Error> {
    let row = sqlx::query(statement.clone())
        .bind(&claim.id.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    match row {
        None => Ok(Seen::Absent { expired_row: false }),
        Some(row) => decode(&row, claim.on_expired),
    }
}

fn decode(row: &SqliteRow, on_expired: OnExpired) -> Result<Seen, sqlx::Error> {
    let state = match row.try_get::<i64, _>(1)? {
        IN_PROGRESS => RecordState::InProgress {
            lease_remaining: Duration::from_micros(
                u64::try_from(row.try_get::<i64, _>(4)?).unwrap_or(0),
            ),
        },
        IN_DOUBT => RecordState::InDoubt,
        COMPLETED => RecordState::Completed {
            response: row.try_get::<Option<Vec<u8>>, _>(2)?.map(Bytes::from),
            at: Timestamp::from_micros(row.try_get(3)?),
        },
        EXPIRED if on_expired == OnExpired::Refuse && row.try_get::<bool, _>(5)? => {
            RecordState::Expired
        }
        EXPIRED => return Ok(Seen::Absent { expired_row: true }),
        other => return Err(undecodable(format!("state {other}"))),
    };
    let fingerprint = Fingerprint::from_stored(row.try_get(0)?)
        .ok_or_else(|| undecodable("a fingerprint of another length".to_owned()))?;
    Ok(Seen::Record(Record::new(fingerprint, state)))
}

fn undecodable(what: String) -> sqlx::Error {
    sqlx::Error::Decode(format!("a record has {what}").into())
}
