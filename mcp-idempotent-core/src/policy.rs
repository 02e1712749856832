//! The rules for one tool, and the overrides that a single tool makes (`overriding`, with the one list of options). What
//! cannot work is found in `check`.

mod check;
mod overriding;

use std::{sync::Arc, time::Duration};

pub use self::{
    check::{InvalidPolicy, PolicyUse},
    overriding::{AppliesIn, PolicyOverride},
};

/// What a tool requires of a call's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KeyRequirement {
    /// Use the explicit key if there is one. Otherwise derive a key from the canonical arguments.
    #[default]
    Derived,
    /// Only an explicit key protects. A call without one runs unprotected.
    Explicit,
    /// A call without an explicit key is refused.
    Required,
}

/// What to do with a duplicate of a call that is still running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// Wait for the first call's result, but at most this long. Then answer `in_progress`.
    UpTo(Duration),
    /// Answer `in_progress` at once (as SEP-3182 recommends).
    Reject,
}

impl Wait {
    /// Under [`Wait::Reject`] a caller still waits until the leader of its key knows whether there
    /// is a record, but at most this long.
    pub(crate) const CLAIM_BOUND: Duration = Duration::from_secs(5);
}

/// What an error means for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Depends on mode and key. In transaction mode, an `isError` result is recorded under an
    /// explicit key (its effect is rolled back) and not recorded under a derived key; a protocol
    /// error is never recorded. In lease mode, [`Policy::check`] refuses this value: the author
    /// must say what an error means.
    #[default]
    Default,
    /// Transaction mode: record every error, with the effect rolled back.
    Record,
    /// Record no error, neither an `isError` result nor a protocol error. In lease mode this is the
    /// author's statement that an error proves that nothing happened, or that a repeat is safe.
    Release,
    /// Transaction mode: commit the effect together with an `isError` result.
    Commit,
    /// Lease mode: an error does not prove that nothing happened. An `isError` result under an
    /// explicit key is recorded all the same: a declined card is an answer.
    InDoubt,
}

/// Lease mode: what an `isError` result means for the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is nothing else to do with a result"
)]
pub enum OnErrorResult {
    /// It is an answer, such as a declined card: it is recorded and replayed.
    Record,
    /// It proves that nothing happened, or a repeat is safe: a retry runs again.
    Release,
    /// It does not prove that nothing happened: the call is in doubt.
    InDoubt,
}

/// Lease mode: what happens to a call whose earlier attempt is in doubt. That attempt may have
/// acted, but its result was never recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnDoubt {
    /// The call is refused as `idempotency_outcome_unknown` until an operator resolves the record.
    #[default]
    Fail,
    /// The call runs the handler again, as another attempt. Choose this if a repeat is safe, for
    /// instance because the outside call carries the [downstream key](crate::DownstreamKey).
    Rerun,
    /// The author's own function asks the other side what happened
    /// ([`Request::with_verify`](crate::Request::with_verify)).
    Verify,
}

/// What happens to a call whose record is past its retention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum OnExpired {
    /// It counts as a new call.
    #[default]
    New,
    /// It is refused as `idempotency_key_expired` while the tombstone is kept.
    Refuse,
}

/// What happens to a call under an explicit key if an equal call (same scope, tool and canonical
/// arguments) was made under *another* explicit key: it runs now, or completed within
/// [`Policy::rotated_keys_window`]. A client that makes a new key for each attempt would otherwise run
/// every retry.
///
/// Calls without a key take no part, and neither do calls whose key begins with
/// [`NEW_INTENT`](crate::IdempotencyKey::NEW_INTENT). In transaction mode a call whose handler failed does
/// not count: its effect is undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RotatedKeys {
    /// It runs. Nothing is looked up, and nothing is paid.
    #[default]
    Allow,
    /// It runs. It is counted and logged, and its caller is told.
    Report,
    /// It is refused as `idempotency_key_rotated`, with the way to confirm a new intent.
    Refuse,
    /// It gets the result of the other call. If that one still runs, it waits for it.
    Join,
}

/// The rules for one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// What the tool requires of a key.
    pub key: KeyRequirement,
    /// Where in the arguments a key may be found, as a JSON pointer (RFC 6901). This argument is
    /// left out of the fingerprint.
    pub key_argument: Option<Arc<str>>,
    /// JSON pointers (RFC 6901) of arguments that take no part in identity.
    pub ignored: Arc<[Arc<str>]>,
    /// The earlier name of a tool that was renamed. Its calls are still recorded and recognised under
    /// that name, so a retry across the change finds its record. Keep it: leaving it out is another
    /// change of the name.
    pub also_known_as: Option<Arc<str>>,
    /// How long a result under an explicit key is kept, from completion.
    pub retention: Duration,
    /// How long a result under a derived key is kept, from completion. Within this window a second
    /// equal call counts as a retry.
    pub window: Duration,
    /// What happens to a duplicate of a running call.
    pub wait: Wait,
    /// What happens to an equal call under another explicit key. Unless it is
    /// [`RotatedKeys::Allow`], each new call under an explicit key costs two more writes in the store, in
    /// both modes. After a crash in transaction mode, a retry is told for up to one
    /// [`lease`](Self::lease) that the call is in progress. It cannot be used while a secret is replaced.
    pub rotated_keys: RotatedKeys,
    /// How long a completed call counts for [`rotated_keys`](Self::rotated_keys).
    pub rotated_keys_window: Duration,
    /// What an error means.
    pub on_error: OnError,
    /// Lease mode: what an `isError` result means. `None` leaves it to
    /// [`on_error`](Self::on_error).
    pub on_error_result: Option<OnErrorResult>,
    /// What happens to a call whose record has expired.
    pub on_expired: OnExpired,
    /// How long the tombstone of an expired record is kept under [`OnExpired::Refuse`].
    pub tombstone: Duration,
    /// Lease mode: how long a claim is honoured without a heartbeat. After a crash, retries are
    /// told for up to this long that the call is in progress.
    pub lease: Duration,
    /// Lease mode: how often a running attempt renews its lease. `None` means a third of the lease.
    pub heartbeat: Option<Duration>,
    /// Lease mode: what happens to a call whose earlier attempt is in doubt.
    pub on_doubt: OnDoubt,
    /// Lease mode with [`OnDoubt::Verify`]: how long the author's function may take. After that its
    /// answer counts as "not known".
    pub verify_timeout: Duration,
    /// How long a record in doubt is kept. In lease mode this is counted from the end of its lease,
    /// in transaction mode (where only a handler that ended the transaction itself leaves doubt)
    /// from the end of the call. After that it counts as absent, and the same call is a new call.
    pub in_doubt_retention: Duration,
    /// Transaction mode: how long a handler may run. At the end of this time its cancellation token
    /// fires. If it goes on for as long again, but at most for [`Policy::LONGEST_GRACE`], it is
    /// dropped and its transaction is rolled back. `None` means no limit but the store's.
    pub transaction_timeout: Option<Duration>,
    /// The largest result that is stored, in encoded bytes.
    pub max_result_bytes: usize,
    /// Lease mode only: if the store cannot be reached, run the handler without any protection
    /// instead of refusing the call. A call that is known to be in doubt, or to be running
    /// elsewhere, is still refused.
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
    /// How long the author's verify function may take: 30 seconds.
    pub const DEFAULT_VERIFY_TIMEOUT: Duration = Duration::from_secs(30);
    /// How long the tombstone of an expired record is kept: 7 days.
    pub const DEFAULT_TOMBSTONE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    /// How long a record in doubt is kept: 90 days.
    pub const DEFAULT_IN_DOUBT_RETENTION: Duration = Duration::from_secs(90 * 24 * 60 * 60);
    /// How long a handler may go on after its [timeout](Self::transaction_timeout): at most 5 seconds.
    pub const LONGEST_GRACE: Duration = Duration::from_secs(5);
    /// The largest stored result: 1 MiB.
    pub const DEFAULT_MAX_RESULT_BYTES: usize = 1024 * 1024;

    /// The longest duration that any rule may have: a hundred years. That is as good as for ever,
    /// and still within every store's arithmetic.
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
            also_known_as: None,
            retention: Self::DEFAULT_RETENTION,
            window: Self::DEFAULT_WINDOW,
            wait: Wait::UpTo(Self::DEFAULT_WAIT),
            rotated_keys: RotatedKeys::default(),
            rotated_keys_window: Self::DEFAULT_WINDOW,
            on_error: OnError::default(),
            on_error_result: None,
            on_expired: OnExpired::default(),
            tombstone: Self::DEFAULT_TOMBSTONE,
            lease: Self::DEFAULT_LEASE,
            heartbeat: None,
            on_doubt: OnDoubt::default(),
            verify_timeout: Self::DEFAULT_VERIFY_TIMEOUT,
            in_doubt_retention: Self::DEFAULT_IN_DOUBT_RETENTION,
            transaction_timeout: None,
            max_result_bytes: Self::DEFAULT_MAX_RESULT_BYTES,
            run_unprotected_when_store_is_unavailable: false,
        }
    }
}
