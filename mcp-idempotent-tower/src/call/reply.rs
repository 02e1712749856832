//! What a caller gets.

use mcp_idempotent_core::{Answer, Refusal, Replay};

use super::refusal;

/// What a caller gets.
pub(crate) enum Reply<R> {
    /// The result of the handler, which ran for this caller.
    Ran(R),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    Refused(Refusal),
}

impl<R> Reply<R> {
    pub(super) fn of(answer: Answer, ran: Result<R, Refusal>) -> Self {
        match (answer, ran) {
            (Answer::Executed, Ok(result)) => Self::Ran(result),
            (Answer::Executed, Err(refusal)) | (Answer::Refused(refusal), _) => {
                Self::Refused(refusal)
            }
            (Answer::Replayed(replay), _) => Self::Replayed(replay),
        }
    }

    pub(super) fn without_running(answer: Answer) -> Self {
        Self::of(answer, Err(refusal::unreadable()))
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
