//! Refusals: the answers that carry no result.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc, time::Duration};

use crate::fingerprint::KeyKind;

/// What is known about the effect of a refused call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the wire format has exactly these three"
)]
pub enum CommitOutcome {
    /// The effect was committed.
    Committed,
    /// Nothing of this call was committed.
    NotCommitted,
    /// It is not known whether the effect was committed.
    Unknown,
}

impl CommitOutcome {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::NotCommitted => "not_committed",
            Self::Unknown => "unknown",
        }
    }
}

/// What the caller should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the wire format has exactly these four"
)]
pub enum Action {
    /// Send the same call with the same key again.
    RetrySameKey,
    /// This key cannot be used for this call. A new intent needs a new key.
    UseNewKey,
    /// Wait, then send the same call with the same key again.
    Wait,
    /// An operator has to look into it.
    AskOperator,
}

impl Action {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RetrySameKey => "retry_same_key",
            Self::UseNewKey => "use_new_key",
            Self::Wait => "wait",
            Self::AskOperator => "ask_operator",
        }
    }
}

/// The kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The key is not 1 to 255 bytes of text without control characters, or two sources gave different keys.
    KeyInvalid,
    /// This tool only accepts calls with a key.
    KeyRequired,
    /// The key was used for another tool or other arguments.
    KeyConflict,
    /// An equal call was made under another key, and the policy does not allow that.
    KeyRotated,
    /// The first call with this key is still running.
    KeyInProgress,
    /// The key's record is past its retention, and the policy refuses a second use.
    KeyExpired,
    /// It is not known whether the first call acted.
    OutcomeUnknown,
    /// The effect is committed, but its result is not kept: it was too large, or unknown to the operator
    /// who resolved the call.
    ResultTooLarge,
    /// The store could not be reached. The handler did not run, unless it was the running handler that
    /// asked the store ([`LeaseHandle::ensure_current`](crate::LeaseHandle::ensure_current)).
    StoreUnavailable,
    /// The handler ran, but its transaction could not be committed.
    NotCommitted,
    /// The caller may not call this tool.
    Unauthorized,
    /// Too many calls are already waiting.
    TooManyWaiting,
    /// The scope has begun too many new calls.
    TooManyNewCalls,
    /// The server's set-up cannot protect this call.
    Misconfigured,
    /// The handler panicked.
    HandlerPanicked,
    /// The handler held its transaction for longer than the store or the policy's
    /// `transaction_timeout` allows.
    TransactionTooLong,
}

impl ErrorKind {
    /// The `type` on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyInvalid => "idempotency_key_invalid",
            Self::KeyRequired => "idempotency_key_required",
            Self::KeyConflict => "idempotency_key_conflict",
            Self::KeyRotated => "idempotency_key_rotated",
            Self::KeyInProgress => "idempotency_key_in_progress",
            Self::KeyExpired => "idempotency_key_expired",
            Self::OutcomeUnknown => "idempotency_outcome_unknown",
            Self::ResultTooLarge => "idempotency_result_too_large",
            Self::StoreUnavailable => "idempotency_store_unavailable",
            Self::NotCommitted => "idempotency_not_committed",
            Self::Unauthorized => "idempotency_unauthorized",
            Self::TooManyWaiting => "idempotency_too_many_waiting",
            Self::TooManyNewCalls => "idempotency_too_many_new_calls",
            Self::Misconfigured => "idempotency_misconfigured",
            Self::HandlerPanicked => "idempotency_handler_panicked",
            Self::TransactionTooLong => "idempotency_transaction_too_long",
        }
    }

    /// Whether it is the caller who has to change something (`-32602`) and not the server
    /// (`-32603`).
    #[must_use]
    pub const fn is_callers(self) -> bool {
        matches!(
            self,
            Self::KeyInvalid
                | Self::KeyRequired
                | Self::KeyConflict
                | Self::KeyRotated
                | Self::KeyInProgress
                | Self::KeyExpired
                | Self::Unauthorized
                | Self::TooManyWaiting
                | Self::TooManyNewCalls
        )
    }
}

/// A refused call: the kind, what became of its effect, what to do next, and a sentence that a
/// person or a model can act on.
#[derive(Debug, Clone)]
pub struct Refusal {
    kind: ErrorKind,
    outcome: CommitOutcome,
    action: Action,
    retry_after: Option<Duration>,
    message: String,
    message_without_key: Option<Cow<'static, str>>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Refusal {
    /// A refusal without a source and without a time to wait.
    #[must_use]
    pub fn new(
        kind: ErrorKind,
        outcome: CommitOutcome,
        action: Action,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            outcome,
            action,
            retry_after: None,
            message: message.into(),
            message_without_key: None,
            source: None,
        }
    }

    /// Sets how long to wait before retrying.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// The sentence for a caller who sent no key, where the one for others speaks of a key.
    #[must_use]
    pub fn with_message_without_key(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message_without_key = Some(message.into());
        self
    }

    /// Keeps the cause for the server's log. It is never sent to the caller.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Turns this refusal into the answer to a status request. A refused question says nothing
    /// about the effect of the call that was asked about, so the outcome becomes unknown.
    #[must_use]
    pub fn into_unanswered(mut self) -> Self {
        if self.outcome != CommitOutcome::Unknown {
            self.outcome = CommitOutcome::Unknown;
            self.message_without_key = None;
            self.message = match self.action {
                Action::AskOperator => {
                    "The question could not be answered, because the server is not set up for it, so \
                     it is not known what became of the call. The server's log names the remedy."
                }
                _ => {
                    "The question could not be answered, so it is not known what became of the call. \
                     Ask again, or send the call again with the same key, never with a new one."
                }
            }
            .to_owned();
        }
        self
    }

    /// The kind of this refusal.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is known about the effect.
    #[must_use]
    pub const fn outcome(&self) -> CommitOutcome {
        self.outcome
    }

    /// What the caller should do next.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// How long to wait before retrying, if known.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The sentence for a caller who sent a key.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether callers who sent no key get a sentence of their own.
    #[must_use]
    pub const fn has_message_without_key(&self) -> bool {
        self.message_without_key.is_some()
    }

    /// The sentence for a caller who sent a key, or none.
    #[must_use]
    pub fn message_for(&self, key: KeyKind) -> &str {
        match (key, &self.message_without_key) {
            (KeyKind::Derived, Some(message)) => message,
            _ => &self.message,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
