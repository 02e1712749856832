//! How a handler ended, and what its caller gets.

use mcp_idempotent_core::{
    Answer, Bytes, HandlerResult, Interrupted, OnDoubt, OnErrorResult, Refusal, Replay, ResultKind,
    RotatedKey, answer,
    refusal::{session_ended, session_ended_after_acting},
};

use crate::call::refusal;

/// Why a handler has no result.
pub(in crate::call) struct NoResult {
    pub(in crate::call) kind: ResultKind,
    pub(in crate::call) refusal: Refusal,
}

impl NoResult {
    /// In transaction mode: what the handler wrote is rolled back.
    pub(in crate::call) fn rolled_back(why: Interrupted) -> Self {
        Self {
            kind: ResultKind::Interrupted,
            refusal: match why {
                Interrupted::SessionEnded => session_ended(),
                why => refusal::interrupted(why),
            },
        }
    }

    /// In lease mode: the handler may have acted outside.
    pub(in crate::call) fn after_acting(why: Interrupted, on_doubt: OnDoubt) -> Self {
        Self {
            kind: ResultKind::Interrupted,
            refusal: match why {
                Interrupted::SessionEnded => session_ended_after_acting(on_doubt),
                why => refusal::interrupted_after_acting(why, on_doubt),
            },
        }
    }
}

/// What a handler returned.
pub(in crate::call) type Ran<R> = Result<R, NoResult>;

/// How the handler ended, for the engine. A call without a result is rolled back, in doubt or free, and is
/// never recorded.
pub(in crate::call) struct Seen<'a, R>(pub(in crate::call) &'a Ran<R>);

impl<R: HandlerResult> HandlerResult for Seen<'_, R> {
    fn kind(&self) -> ResultKind {
        match self.0 {
            Ok(result) => result.kind(),
            Err(none) => none.kind,
        }
    }

    fn on_error_result(&self) -> Option<OnErrorResult> {
        self.0.as_ref().ok()?.on_error_result()
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self.0 {
            Ok(result) => result.encode(),
            Err(_) => Err("the handler has no result".into()),
        }
    }
}

/// What a caller gets.
pub(crate) enum Reply<R> {
    /// The result of the handler, which ran for this caller.
    Ran(Own<R>),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    Refused(Refusal),
}

/// What the handler of this very call returned, and what is said beside it.
pub(crate) struct Own<R> {
    pub(crate) result: R,
    /// Set if the handler ran although an equal call was made under another key.
    pub(crate) rotated: Option<RotatedKey>,
    pub(crate) record: Recorded,
}

/// What the handler's result left behind.
pub(crate) enum Recorded {
    /// What the policy says.
    AsPlanned,
    /// Nothing: the store could not be reached.
    Not,
    /// A call in doubt. This is what a retry will be told.
    InDoubt(Refusal),
}

impl<R> Reply<R> {
    pub(in crate::call) fn of(answer: Answer, ran: Ran<R>, rotated: Option<RotatedKey>) -> Self {
        let record = match answer {
            Answer::Executed => Recorded::AsPlanned,
            Answer::Unrecorded => Recorded::Not,
            Answer::LeftInDoubt(refusal) => Recorded::InDoubt(refusal),
            Answer::Replayed(replay) => return Self::Replayed(replay),
            Answer::Refused(refusal) => return Self::Refused(refusal),
        };
        match ran {
            Ok(result) => Self::Ran(Own {
                result,
                rotated,
                record,
            }),
            Err(NoResult { refusal, .. }) => Self::Refused(refusal),
        }
    }

    pub(in crate::call) fn without_running(answer: Answer) -> Self {
        match answer {
            Answer::Replayed(replay) => Self::Replayed(replay),
            Answer::Refused(refusal) => Self::Refused(refusal),
            Answer::Executed | Answer::Unrecorded | Answer::LeftInDoubt(_) => {
                Self::Refused(answer::unreadable())
            }
        }
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
