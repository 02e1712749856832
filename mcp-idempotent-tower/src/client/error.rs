//! How a retried call ends without a result.

use std::{error::Error as StdError, fmt};

use mcp_idempotent_core::{CommitOutcome, IdempotencyKey};
use rmcp::ErrorData;

use super::{failure::Failure, refusal::ReceivedRefusal};

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallErrorKind {
    /// The call was sent, no usable answer came, and it was not repeated (again): the tool may have
    /// run.
    MayHaveRun,
    /// No attempt reached the tool: there was no connection, or the server proved that it did not
    /// run the call.
    NotRun,
    /// The server refused the call because of its key; [`refusal`](CallError::refusal) has the
    /// reason and the advice.
    Refused,
    /// The server answered with another JSON-RPC error; [`answer`](CallError::answer) has it.
    Answered,
}

/// A call that ended without a result, after all its attempts.
#[derive(Debug)]
pub struct CallError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: CallErrorKind,
    cause: Failure,
    attempts: u32,
    may_have_run: bool,
    key: Option<IdempotencyKey>,
}

impl CallError {
    /// `may_have_run`: whether the tool may have run in an earlier attempt.
    pub(super) fn new(
        cause: Failure,
        attempts: u32,
        may_have_run: bool,
        key: Option<IdempotencyKey>,
    ) -> Self {
        let kind = match &cause {
            Failure::Lost { .. } | Failure::Unusable(_) => CallErrorKind::MayHaveRun,
            Failure::NotRun(_) if may_have_run => CallErrorKind::MayHaveRun,
            Failure::NotRun(_) => CallErrorKind::NotRun,
            Failure::Refused(_) => CallErrorKind::Refused,
            Failure::Answered(_) => CallErrorKind::Answered,
        };
        let may_have_run = may_have_run || acts(&cause);
        Self(Box::new(Inner {
            kind,
            cause,
            attempts,
            may_have_run,
            key,
        }))
    }

    /// How it ended.
    #[must_use]
    pub fn kind(&self) -> CallErrorKind {
        self.0.kind
    }

    /// Whether the tool may have run in one of the attempts. `false` only where every attempt
    /// proved that it did not, or the server said that nothing was committed.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        self.0.may_have_run
    }

    /// The key that every attempt carried. To go on with this call later, send this key.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.0.key.as_ref()
    }

    /// How many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// The server's refusal, if the last attempt ended with one.
    #[must_use]
    pub fn refusal(&self) -> Option<&ReceivedRefusal> {
        match &self.0.cause {
            Failure::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The server's other error, if the last attempt ended with one.
    #[must_use]
    pub fn answer(&self) -> Option<&ErrorData> {
        match &self.0.cause {
            Failure::Answered(error) => Some(error),
            _ => None,
        }
    }
}

/// Whether the tool may have acted in an attempt that ended like this.
pub(super) fn acts(failure: &Failure) -> bool {
    match failure {
        Failure::NotRun(_) => false,
        Failure::Refused(refusal) => refusal.outcome() != CommitOutcome::NotCommitted,
        Failure::Lost { .. } | Failure::Answered(_) | Failure::Unusable(_) => true,
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.cause, self.0.kind) {
            (Failure::Refused(refusal), _) => write!(f, "the server refused the call: {refusal}"),
            (Failure::Answered(error), _) => {
                write!(f, "the server answered with an error: {}", error.message)
            }
            (_, CallErrorKind::NotRun) => f.write_str("the call was not run"),
            _ if self.0.key.is_some() => f.write_str(
                "the call was sent and no answer came, so the tool may have run; sent again with \
                 the same key it does not run twice",
            ),
            _ => f.write_str(
                "the call was sent and no answer came, so the tool may have run; look before \
                 sending it again",
            ),
        }
    }
}

impl StdError for CallError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(match &self.0.cause {
            Failure::NotRun(error) => error.as_ref(),
            Failure::Lost { error, .. } | Failure::Unusable(error) => error,
            Failure::Refused(refusal) => refusal,
            Failure::Answered(error) => error,
        })
    }
}
