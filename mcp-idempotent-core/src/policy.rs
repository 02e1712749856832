//! The rules for one tool, and what one tool says differently.

mod check;
mod overriding;

use std::{sync::Arc, time::Duration};

pub use self::{
    check::{InvalidPolicy, PolicyUse},
    overriding::PolicyOverride,
};

/// What a tool wants of a call's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KeyRequirement {
    /// An explicit key where there is one, else one derived from the canonical arguments.
    #[default]
    Derived,
    /// Only an explicit key protects; a call without one runs unprotected.
    Explicit,
    /// A call without an explicit key is refused.
    Required,
}

/// What to do with a duplicate of a call that still runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Wait for the first call's result, at most this long, then answer `in_progress`.
    UpTo(Duration),
    /// Answer `in_progress` at once (as SEP-3182 recommends).
    Reject,
}

impl Wait {
    /// How long a caller that rejects waiting still waits for the leader of its key to find out
    /// whether there is a record.
    pub(crate) const CLAIM_BOUND: Duration = Duration::from_secs(5);
}

/// What an error means for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnError {
    /// By mode and key: in transaction mode an `isError` result under an explicit key is recorded
    /// (its effect rolled back), under a derived key it is not, and a protocol error never is. For a
    /// tool in lease mode [`Policy::check`] refuses it: the author must say what an error means.
    #[default]
    Default,
    /// Transaction mode: record every error, with the effect rolled back.
    Record,
    /// Record no error. In lease mode the author says with it that an error proves that nothing
    /// happened, or that a repeat is safe.
    Release,
    /// Transaction mode: commit the effect together with an `isError` result.
    Commit,
    /// Lease mode: an error does not prove that nothing happened.
    InDoubt,
}

/// What a call in lease mode means whose earlier attempt is in doubt: it may have acted, and
/// nobody recorded its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnDoubt {
    /// It is refused as `idempotency_outcome_unknown` until an operator resolves the record.
    #[default]
    Fail,
    /// It runs the handler again, as another attempt: a repeat is safe, for instance because the
    /// outside call carries the [downstream key](crate::DownstreamKey).
    Rerun,
    /// It asks the author's own function, which asks the other side
    /// ([`Request::with_verify`](crate::Request::with_verify)).
    Verify,
}

/// What a call means whose record is past its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnExpired {
    /// It is a new call.
    #[default]
    New,
    /// It is refused as `idempotency_key_expired` while the tombstone is kept.
    Refuse,
}

/// The rules for one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// What the tool wants of a key.
    pub key: KeyRequirement,
    /// Where in the arguments a key may stand, as a JSON pointer (RFC 6901); left out of the
    /// fingerprint.
    pub key_argument: Option<Arc<str>>,
    /// JSON pointers (RFC 6901) of arguments that take no part in identity.
    pub ignored: Arc<[Arc<str>]>,
    /// How long a result under an explicit key is kept, from completion.
    pub retention: Duration,
    /// How long a result under a derived key is kept, from completion: within it a second equal
    /// call is taken for a retry.
    pub window: Duration,
    /// What a duplicate of a running call does.
    pub wait: Wait,
    /// What an error means.
    pub on_error: OnError,
    /// What a call means whose record has expired.
    pub on_expired: OnExpired,
    /// How long the tombstone of an expired record is kept under [`OnExpired::Refuse`].
    pub tombstone: Duration,
    /// Lease mode: how long a claim is honoured without a heartbeat. After a crash a retry is told
    /// for this long that the call is in progress.
    pub lease: Duration,
    /// Lease mode: how often a running attempt renews its lease; `None` is a third of the lease.
    pub heartbeat: Option<Duration>,
    /// Lease mode: what a call means whose earlier attempt is in doubt.
    pub on_doubt: OnDoubt,
    /// Lease mode, [`OnDoubt::Verify`]: how long the author's function may take; after that it is
    /// taken to have answered that it does not know.
    pub verify_timeout: Duration,
    /// Lease mode: how long a record is kept that is in doubt, from the end of its lease. Then it is
    /// absent, and the same call is a new one.
    pub in_doubt_retention: Duration,
    /// The largest result that is stored, in bytes as encoded.
    pub max_result_bytes: usize,
    /// Lease mode only: run the handler without any protection when the store cannot be reached,
    /// instead of refusing the call. A call that is known to be in doubt, or to run elsewhere, is
    /// refused all the same.
    pub run_unprotected_when_store_is_unavailable: bool,
}

impl Policy {
    /// Retention of results under an explicit key: 24 hours.
    pub const DEFAULT_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);
    /// Window of results under a derived key: 10 minutes.
    pub const DEFAULT_WINDOW: Duration = Duration::from_secs(10 * 60);
    /// How long a duplicate waits: 30 seconds.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);
    /// How long a lease-mode claim is honoured without a heartbeat: 2 minutes.
    pub const DEFAULT_LEASE: Duration = Duration::from_secs(2 * 60);
    /// How long the author's function may take that finds out about a call in doubt: 30 seconds.
    pub const DEFAULT_VERIFY_TIMEOUT: Duration = Duration::from_secs(30);
    /// How long the tombstone of an expired record is kept: 7 days.
    pub const DEFAULT_TOMBSTONE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    /// How long a record in doubt is kept: 90 days.
    pub const DEFAULT_IN_DOUBT_RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);
    /// The largest stored result: 1 MiB.
    pub const DEFAULT_MAX_RESULT_BYTES: usize = 1024 * 1024;

    /// The longest time that anything may last: a hundred years. That is as good as for ever, and
    /// short enough for every store's arithmetic.
    pub const LONGEST: Duration = Duration::from_secs(36_525 * 24 * 60 * 60);

    /// How often a running attempt renews its lease.
    #[must_use]
    pub fn heartbeat_period(&self) -> Duration {
        self.heartbeat.unwrap_or(self.lease / 3)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            key: KeyRequirement::default(),
            key_argument: None,
            ignored: Arc::new([]),
            retention: Self::DEFAULT_RETENTION,
            window: Self::DEFAULT_WINDOW,
            wait: Wait::UpTo(Self::DEFAULT_WAIT),
            on_error: OnError::default(),
            on_expired: OnExpired::default(),
            tombstone: Self::DEFAULT_TOMBSTONE,
            lease: Self::DEFAULT_LEASE,
            heartbeat: None,
            on_doubt: OnDoubt::default(),
            verify_timeout: Self::DEFAULT_VERIFY_TIMEOUT,
            in_doubt_retention: Self::DEFAULT_IN_DOUBT_RETENTION,
            max_result_bytes: Self::DEFAULT_MAX_RESULT_BYTES,
            run_unprotected_when_store_is_unavailable: false,
        }
    }
}
