//! What a caller gets.

use mcp_idempotent_core::{Answer, Refusal, Replay, answer};

use super::handler::{NoResult, Ran};

/// What a caller gets.
pub(crate) enum Reply<R> {
    /// The result of the handler, which ran for this caller.
    Ran(R),
    /// The same, but the result could not be recorded.
    Unrecorded(R),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    Refused(Refusal),
}

impl<R> Reply<R> {
    pub(super) fn of(answer: Answer, ran: Ran<R>) -> Self {
        match (answer, ran) {
            (Answer::Executed, Ok(result)) => Self::Ran(result),
            (Answer::Unrecorded, Ok(result)) => Self::Unrecorded(result),
            (Answer::Executed | Answer::Unrecorded, Err(NoResult { refusal, .. }))
            | (Answer::Refused(refusal), _) => Self::Refused(refusal),
            (Answer::Replayed(replay), _) => Self::Replayed(replay),
        }
    }

    pub(super) fn without_running(answer: Answer) -> Self {
        match answer {
            Answer::Replayed(replay) => Self::Replayed(replay),
            Answer::Refused(refusal) => Self::Refused(refusal),
            Answer::Executed | Answer::Unrecorded => Self::Refused(answer::unreadable()),
        }
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
