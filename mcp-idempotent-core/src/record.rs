//! What a store keeps about a call.

use std::{
    fmt,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;

use crate::fingerprint::Fingerprint;

/// A moment on the store's clock, in microseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This time, and `duration` more.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let micros = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros))
    }
}

/// RFC 3339 in UTC, with milliseconds: `2026-11-29T12:00:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after_epoch = Duration::from_micros(u64::try_from(self.0).unwrap_or(0));
        humantime::format_rfc3339_millis(UNIX_EPOCH + after_epoch).fmt(f)
    }
}

/// A stored row, as the store found it. The store has already decided expiry and lapse, by its own
/// clock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Record {
    /// What was asked when the record was made.
    pub fingerprint: Fingerprint,
    /// How far the call has got.
    pub state: RecordState,
}

impl Record {
    /// A record as a store returns it.
    #[must_use]
    pub const fn new(fingerprint: Fingerprint, state: RecordState) -> Self {
        Self { fingerprint, state }
    }
}

/// How far a recorded call has got. A record past its expiry is not reported at all, except as
/// [`Expired`](RecordState::Expired) to a claim that asks for it.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must be made to think about every state"
)]
pub enum RecordState {
    /// A lease-mode attempt holds an unexpired lease.
    InProgress {
        /// How long the lease is still valid.
        lease_remaining: Duration,
    },
    /// The lease ran out with no result, or the attempt itself reported doubt. Whether the handler
    /// acted is unknown. The record stays in doubt until an operator resolves it, an attempt takes
    /// over (if the policy allows that), or its own retention has passed.
    InDoubt {
        /// The fencing token of the attempt that left the record in doubt.
        token: i64,
        /// How many attempts there have been since the origin.
        attempts: u32,
        /// Since when it has been in doubt.
        since: Timestamp,
    },
    /// Finished.
    Completed {
        /// The encoded result; `None` when it was too large to store, or unknown to
        /// the operator who resolved the call.
        response: Option<Bytes>,
        /// When the finishing statement ran.
        at: Timestamp,
    },
    /// Finished, and past its retention; reported only to a claim with
    /// [`OnExpired::Refuse`](crate::OnExpired).
    Expired,
}
