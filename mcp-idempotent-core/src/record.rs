//! What a store keeps of a call.

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
}

/// RFC 3339 in UTC, with milliseconds: `2026-11-29T12:00:00.000Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after_epoch = Duration::from_micros(u64::try_from(self.0).unwrap_or(0));
        humantime::format_rfc3339_millis(UNIX_EPOCH + after_epoch).fmt(f)
    }
}

/// A stored row, as a store found it. Expiry and lapse are already decided, by the store's clock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Record {
    /// What was asked when the record was made.
    pub fingerprint: Fingerprint,
    /// Where the call stands.
    pub state: RecordState,
}

impl Record {
    /// A record as a store returns it.
    #[must_use]
    pub const fn new(fingerprint: Fingerprint, state: RecordState) -> Self {
        Self { fingerprint, state }
    }
}

/// Where a recorded call stands. A record past its expiry is not reported at all, except as
/// [`Expired`](RecordState::Expired) to a claim that asks for it.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must be made to think about every state"
)]
pub enum RecordState {
    /// A lease-mode attempt holds an unexpired lease.
    InProgress {
        /// How long the lease still runs.
        lease_remaining: Duration,
    },
    /// The lease ran out with no result, or the attempt said so: whether the handler acted is
    /// unknown. Stays until an operator resolves it, an attempt takes over where the policy lets
    /// it, or its own retention has passed.
    InDoubt {
        /// The token of the attempt that left it so.
        token: i64,
        /// How many attempts there were since its origin.
        attempts: u32,
        /// Since when.
        since: Timestamp,
    },
    /// Finished.
    Completed {
        /// The encoded result; `None` when it was too large to store.
        response: Option<Bytes>,
        /// When the finishing statement ran.
        at: Timestamp,
    },
    /// Finished, and past its retention; reported only to a claim with
    /// [`OnExpired::Refuse`](crate::OnExpired).
    Expired,
}
