//! A row of `look_up`, read.

use std::time::Duration;

use bytes::Bytes;
use sqlx::{Row, postgres::PgRow};

use super::{
    PostgresStore, id_arguments,
    statement::{Name, bytes, unhex},
};
use crate::{
    fingerprint::Fingerprint,
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
        let fingerprint = Fingerprint::from_stored(&unhex(row.try_get(0)?)?)
            .ok_or_else(|| sqlx::Error::Decode("a stored fingerprint is not 33 bytes".into()))?;
        let state = match row.try_get::<i32, _>(1)? {
            0 => RecordState::InProgress {
                lease_remaining: Duration::from_micros(
                    u64::try_from(row.try_get::<i64, _>(2)?).unwrap_or(0),
                ),
            },
            1 => RecordState::Completed {
                response: row
                    .try_get::<Option<&str>, _>(3)?
                    .map(unhex)
                    .transpose()?
                    .map(Bytes::from),
                at: Timestamp::from_micros(row.try_get(4)?),
            },
            2 => RecordState::InDoubt {
                token: row.try_get(5)?,
                attempts: attempts(row, 6)?,
                // A record that somebody wrote by hand may not say.
                since: Timestamp::from_micros(row.try_get::<Option<i64>, _>(4)?.unwrap_or(0)),
            },
            _ => RecordState::Expired,
        };
        Ok(Self {
            record: Record::new(fingerprint, state),
            token: row.try_get(5)?,
        })
    }
}

impl PostgresStore {
    pub(super) fn look_up_call(&self, claim: &Claim) -> String {
        self.call(Name::LookUp, &id_arguments(claim))
    }

    pub(super) fn seen_call(&self, claim: &Claim) -> String {
        self.call(Name::Seen, &[bytes(claim.id.as_bytes())])
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
