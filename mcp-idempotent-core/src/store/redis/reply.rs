//! Reading what a script answered.

use std::time::Duration;

use bytes::Bytes;
use redis::{FromRedisValue, Value};

use crate::{
    fingerprint::Fingerprint,
    record::{Record, RecordState, Timestamp},
    store::{StoreError, StoreErrorKind},
};

// As in `lua/record.lua`.
pub(super) const IN_PROGRESS: i64 = 0;
pub(super) const COMPLETED: i64 = 1;
pub(super) const IN_DOUBT: i64 = 2;
pub(super) const TOMBSTONE: i64 = 3;
pub(super) const RELEASED: i64 = 4;

/// The values of an answer, from left to right.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// `None` where a script answered nil.
    pub(super) fn new(value: Value) -> Result<Option<Self>, StoreError> {
        match value {
            Value::Nil => Ok(None),
            Value::Array(values) => Ok(Some(Self(values.into_iter()))),
            _ => Err(unreadable()),
        }
    }

    /// An answer that is never nil.
    pub(super) fn expect(value: Value) -> Result<Self, StoreError> {
        Self::new(value)?.ok_or_else(unreadable)
    }

    pub(super) fn value(&mut self) -> Result<Value, StoreError> {
        self.0.next().ok_or_else(unreadable)
    }

    pub(super) fn next<T: FromRedisValue>(&mut self) -> Result<T, StoreError> {
        read(self.value()?)
    }

    pub(super) fn fingerprint(&mut self) -> Result<Fingerprint, StoreError> {
        Fingerprint::from_stored(&self.next::<Vec<u8>>()?).ok_or_else(unreadable)
    }

    pub(super) fn time(&mut self) -> Result<Timestamp, StoreError> {
        self.next().map(Timestamp::from_micros)
    }

    pub(super) fn times(&mut self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.next::<Option<i64>>()?.map(Timestamp::from_micros))
    }

    pub(super) fn response(&mut self) -> Result<Option<Bytes>, StoreError> {
        Ok(self.next::<Option<Vec<u8>>>()?.map(Bytes::from))
    }

    pub(super) fn rest(self) -> impl Iterator<Item = Value> {
        self.0
    }

    pub(super) fn record(mut self) -> Result<Record, StoreError> {
        let state = self.next()?;
        let fingerprint = self.fingerprint()?;
        let state = match state {
            IN_PROGRESS => RecordState::InProgress {
                lease_remaining: Duration::from_micros(self.next()?),
            },
            IN_DOUBT => RecordState::InDoubt {
                token: self.next()?,
                attempts: self.next()?,
                since: self.time()?,
            },
            COMPLETED => RecordState::Completed {
                at: self.time()?,
                response: self.response()?,
            },
            TOMBSTONE => RecordState::Expired,
            _ => return Err(unreadable()),
        };
        Ok(Record::new(fingerprint, state))
    }
}

pub(super) fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    redis::from_redis_value(value).map_err(|error| unreadable().with_source(error))
}

pub(super) fn unreadable() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "Redis store: a record is not as this program writes them",
    )
}
