//! How a call ended, in one word.

use crate::error::{ErrorKind, Refusal};

/// How a call ended. Every call has exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran, and its own result (or error) is the answer.
    Executed,
    /// A recorded result was given.
    Replayed,
    /// The call waited for a running call and got its result.
    Joined,
    /// The handler ran without deduplication, because the policy protects only calls with a key.
    Bypassed,
    /// The store was unavailable, and the policy lets the handler run without any protection.
    FailedOpen,
    /// The handler asked the client for more input. Nothing is recorded.
    InputRequired,
    /// The handler did not run, because its arguments did not parse.
    NotCalled,
    /// Transaction mode: the handler panicked or held its transaction for too long, and was
    /// rolled back.
    Interrupted,
    /// The handler ran again, after an attempt that is in doubt, and its own result is the answer.
    Rerun,
    /// The author's function found that a call in doubt took effect, and its result was given.
    Verified,
    /// The handler ran and left its record in doubt.
    LeftInDoubt,
    /// Refused: the key was used for another call.
    Conflict,
    /// Refused: an equal call was made under another key.
    KeyRotated,
    /// Refused: the first call is still running.
    InProgress,
    /// Refused: it is not known whether an earlier call, or this call's own commit, took effect.
    InDoubt,
    /// The handler outlived its lease, and its result was not recorded.
    Fenced,
    /// Refused: the store failed before the handler ran.
    StoreError,
    /// Refused: the key's record is past its retention.
    Expired,
    /// Refused: the result of a completed call is not kept.
    TooLarge,
    /// The handler's transaction could not be committed, or the calls ahead left no result.
    NotCommitted,
    /// Refused: the caller may not call this tool.
    Unauthorized,
    /// Refused: too many calls are waiting.
    TooManyWaiting,
    /// Refused: the scope has begun too many new calls.
    TooManyNewCalls,
    /// Refused: the server's set-up cannot protect this call.
    Misconfigured,
    /// Refused: the key is malformed, or two sources gave different keys.
    KeyInvalid,
    /// Refused: the tool only accepts calls with a key.
    KeyRequired,
    /// Dropped before it was answered. In lease mode, the record is in doubt if the handler had
    /// started.
    Abandoned,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: &[Self] = &[
        Self::Executed,
        Self::Replayed,
        Self::Joined,
        Self::Bypassed,
        Self::FailedOpen,
        Self::InputRequired,
        Self::NotCalled,
        Self::Interrupted,
        Self::Rerun,
        Self::Verified,
        Self::LeftInDoubt,
        Self::Conflict,
        Self::KeyRotated,
        Self::InProgress,
        Self::InDoubt,
        Self::Fenced,
        Self::StoreError,
        Self::Expired,
        Self::TooLarge,
        Self::NotCommitted,
        Self::Unauthorized,
        Self::TooManyWaiting,
        Self::TooManyNewCalls,
        Self::Misconfigured,
        Self::KeyInvalid,
        Self::KeyRequired,
        Self::Abandoned,
    ];

    /// The value of the span's field and of the metrics' label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Joined => "joined",
            Self::Bypassed => "bypassed",
            Self::FailedOpen => "failed_open",
            Self::InputRequired => "input_required",
            Self::NotCalled => "not_called",
            Self::Interrupted => "interrupted",
            Self::Rerun => "rerun",
            Self::Verified => "verified",
            Self::LeftInDoubt => "left_in_doubt",
            Self::Conflict => "conflict",
            Self::KeyRotated => "key_rotated",
            Self::InProgress => "in_progress",
            Self::InDoubt => "in_doubt",
            Self::Fenced => "fenced",
            Self::StoreError => "store_error",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::NotCommitted => "not_committed",
            Self::Unauthorized => "unauthorized",
            Self::TooManyWaiting => "too_many_waiting",
            Self::TooManyNewCalls => "too_many_new_calls",
            Self::Misconfigured => "misconfigured",
            Self::KeyInvalid => "key_invalid",
            Self::KeyRequired => "key_required",
            Self::Abandoned => "abandoned",
        }
    }
}

pub(super) const fn of_refusal(refusal: &Refusal) -> Outcome {
    match refusal.kind() {
        ErrorKind::KeyInvalid => Outcome::KeyInvalid,
        ErrorKind::KeyRequired => Outcome::KeyRequired,
        ErrorKind::KeyConflict => Outcome::Conflict,
        ErrorKind::KeyRotated => Outcome::KeyRotated,
        ErrorKind::KeyInProgress => Outcome::InProgress,
        ErrorKind::KeyExpired => Outcome::Expired,
        ErrorKind::OutcomeUnknown => Outcome::InDoubt,
        ErrorKind::ResultTooLarge => Outcome::TooLarge,
        ErrorKind::StoreUnavailable => Outcome::StoreError,
        ErrorKind::NotCommitted => Outcome::NotCommitted,
        ErrorKind::Unauthorized => Outcome::Unauthorized,
        ErrorKind::TooManyWaiting => Outcome::TooManyWaiting,
        ErrorKind::TooManyNewCalls => Outcome::TooManyNewCalls,
        ErrorKind::Misconfigured => Outcome::Misconfigured,
        ErrorKind::HandlerPanicked | ErrorKind::TransactionTooLong => Outcome::Interrupted,
    }
}
