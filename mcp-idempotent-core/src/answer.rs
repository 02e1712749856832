//! What a caller is told about a record. This is the only such table, for calls and for status
//! requests, and all its sentences are here. What is told of an attempt that ended without a record is in
//! [`refusal`](crate::refusal).

use std::time::Duration;

use bytes::Bytes;

use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    fingerprint::Identity,
    policy::OnDoubt,
    record::{Record, RecordState, Timestamp},
};

/// How long callers are told to wait before asking again about a running call.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long callers are told to wait before a call in doubt is verified again.
const VERIFY_AFTER: Duration = Duration::from_secs(5);

/// The answer to one call.
#[derive(Debug, Clone)]
#[expect(clippy::exhaustive_enums, reason = "a caller must handle every answer")]
pub enum Answer {
    /// The handler ran for this caller. Give it the handler's own result.
    Executed,
    /// The same, but the result could not be recorded. A retry finds the call in doubt, once its lease has
    /// ended, unless the store wrote the result all the same.
    Unrecorded,
    /// The handler ran for this caller, and its error left the call in doubt. Give it the handler's own
    /// error, and say what the refusal says: a retry will be told the same.
    LeftInDoubt(Refusal),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    /// No result.
    Refused(Refusal),
}

/// A result that another call produced.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Replay {
    /// The bytes that [`HandlerResult::encode`](crate::HandlerResult::encode) returned.
    pub response: Bytes,
    /// When it was recorded. `None` for an intermediate round, which is not recorded.
    pub at: Option<Timestamp>,
    /// Whether this call waited for a running one; otherwise it found a record.
    pub joined: bool,
    /// Whether it is the result of an equal call under another key ([`RotatedKeys::Join`]).
    ///
    /// [`RotatedKeys::Join`]: crate::RotatedKeys::Join
    pub rotated: bool,
}

/// A call ran although an equal call was made under another key
/// ([`RotatedKeys::Report`](crate::RotatedKeys::Report)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RotatedKey {
    /// When the other call completed. `None` if it was running or in doubt.
    pub at: Option<Timestamp>,
}

impl Replay {
    pub(crate) const fn new(response: Bytes, at: Option<Timestamp>, joined: bool) -> Self {
        Self {
            response,
            at,
            joined,
            rotated: false,
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// How a call stands, as far as its record tells.
///
/// | The record is … | What the caller is told | What to do next |
/// | --- | --- | --- |
/// | not there | nothing: the call runs | retry with the same key |
/// | in progress | the call has not ended | wait |
/// | completed, with its result | the result | – |
/// | completed, without its result | the effect is committed | ask the operator |
/// | completed, with a result that cannot be read | the call was executed | ask the operator |
/// | in doubt, under `fail` | the outcome is unknown | ask the operator |
/// | in doubt, under `rerun` or `verify` | the outcome is unknown | retry with the same key |
/// | expired | the result is no longer kept | use a new key |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a caller must handle every state of a call"
)]
pub enum Standing {
    /// There is no record.
    NotSeen,
    /// The call has not ended.
    InProgress,
    /// It is completed, and its result is there.
    Completed,
    /// It is completed, and its result is not kept: it was too large, or unknown to the operator who
    /// resolved the call.
    TooLarge,
    /// It is completed, and its result is there but cannot be read.
    Unreadable,
    /// It is in doubt, until an operator resolves it.
    InDoubt,
    /// It is in doubt, and another call runs or verifies it.
    InDoubtUntilRetried,
    /// It was completed, and its result is no longer kept.
    Expired,
}

/// What a status request is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The state's name.
    pub state: &'static str,
    /// What to do next: the name of an [`Action`].
    pub next: &'static str,
    /// The sentence.
    pub message: &'static str,
}

impl Standing {
    /// How the call stands whose record is in this state.
    #[must_use]
    pub const fn of(state: &RecordState, on_doubt: OnDoubt) -> Self {
        match state {
            RecordState::InProgress { .. } => Self::InProgress,
            RecordState::Completed {
                response: Some(_), ..
            } => Self::Completed,
            RecordState::Completed { response: None, .. } => Self::TooLarge,
            RecordState::InDoubt { .. } => match on_doubt {
                OnDoubt::Fail => Self::InDoubt,
                // The policy offers a way out, and another call starts it.
                OnDoubt::Rerun | OnDoubt::Verify => Self::InDoubtUntilRetried,
            },
            RecordState::Expired => Self::Expired,
        }
    }

    /// What a call is told. `None` if it runs, or gets the recorded result.
    #[must_use]
    pub fn refusal(self) -> Option<Refusal> {
        Some(match self {
            Self::NotSeen | Self::Completed => return None,
            Self::InProgress => in_progress(),
            Self::TooLarge => too_large(),
            Self::Unreadable => unreadable(),
            Self::InDoubt => in_doubt(),
            Self::InDoubtUntilRetried => still_in_doubt(),
            Self::Expired => expired(),
        })
    }

    /// What a status request is told. `next` is what a call with the same key would be told.
    #[must_use]
    pub fn status(self) -> Status {
        let (state, message) = match self {
            Self::NotSeen => (
                "not_seen",
                "No call with this key has arrived, or none has had an effect. It may still be on \
                 its way: send the call with the same key, never with a new one.",
            ),
            Self::InProgress => (
                "in_progress",
                "The call is running. Wait, then ask again, or send it again with the same key to \
                 get its result.",
            ),
            Self::Completed => (
                "completed",
                "The call is completed. Send it again with the same key, tool and arguments to get \
                 its result.",
            ),
            Self::TooLarge => (
                "completed",
                "The call is completed and its effect is committed, but its result is not kept. Do not \
                 repeat it.",
            ),
            Self::Unreadable => (
                "completed",
                "The call is completed, but its stored result cannot be read. Do not repeat it; ask \
                 the operator.",
            ),
            Self::InDoubt => (
                "in_doubt",
                "The call ended without telling whether it took effect. Ask the operator to look \
                 before repeating it.",
            ),
            Self::InDoubtUntilRetried => (
                "in_doubt",
                "The call ended without telling whether it took effect. Send it again with the same \
                 key to find out; do not use a new key.",
            ),
            Self::Expired => (
                "expired",
                "The call was completed, and its result is no longer kept. If you mean it as a new call, send \
                 a new key.",
            ),
        };
        let action = self
            .refusal()
            .map_or(Action::RetrySameKey, |refusal| refusal.action());
        Status {
            state,
            next: action.as_str(),
            message,
        }
    }
}

/// What a record means to a call with this identity. Expiry is checked before the fingerprint,
/// because an expired record no longer says what was asked.
pub(crate) fn answer_from(
    record: Record,
    asked: &Identity,
    on_doubt: OnDoubt,
    joined: bool,
) -> Answer {
    if !matches!(record.state, RecordState::Expired) && !asked.is_of(record.fingerprint) {
        return conflict().into();
    }
    match Standing::of(&record.state, on_doubt).refusal() {
        Some(refusal) => refusal.into(),
        None => match record.state {
            RecordState::Completed {
                response: Some(response),
                at,
            } => Answer::Replayed(Replay::new(response, Some(at), joined)),
            _ => in_progress().into(),
        },
    }
}

pub(crate) fn conflict() -> Refusal {
    Refusal::new(
        ErrorKind::KeyConflict,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        "This idempotency key was already used for a different call (another tool or other \
         arguments). This call was not executed. To make it, send a new key.",
    )
}

pub(crate) fn in_progress() -> Refusal {
    Refusal::new(
        ErrorKind::KeyInProgress,
        CommitOutcome::Unknown,
        Action::Wait,
        "The first call with this idempotency key has not ended: it is still running, or its \
                 server was interrupted. This call was not executed. Wait, then send the same call \
                 with the same key.",
    )
    // A key that is added now would make it another call.
    .with_message_without_key(
        "An equal call made earlier has not ended: it is still running, or its server was \
                 interrupted. This call was not executed. Wait, then send exactly the same call \
                 again, without adding a key.",
    )
    .with_retry_after(RETRY_AFTER)
}

pub(crate) fn expired() -> Refusal {
    Refusal::new(
        ErrorKind::KeyExpired,
        CommitOutcome::Unknown,
        Action::UseNewKey,
        "This idempotency key was used before and its result is no longer kept. The call was not \
         executed again. If you mean it as a new call, send a new key.",
    )
    .with_message_without_key(
        "An equal call was made earlier and its result is no longer kept. This one was not executed.",
    )
}

pub(crate) fn in_doubt() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "An earlier call with this idempotency key ended without telling whether it took \
                 effect. It was not executed again. Ask the operator to look before repeating it \
                 with a new key.",
    )
    .with_message_without_key(
        "An equal call made earlier ended without telling whether it took effect, so this \
                 one was not executed. Ask the operator to look before making it again.",
    )
}

/// Whether the call took effect is not known yet; asking again may tell.
pub(crate) fn still_in_doubt() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "An earlier call with this idempotency key ended without telling whether it took \
                 effect, and that could not be found out yet. Send the same call with the same key \
                 again to find out; do not use a new key.",
    )
    .with_message_without_key(
        "An equal call made earlier ended without telling whether it took effect, and that \
                 could not be found out yet. Send exactly the same call again to find out, without \
                 adding a key.",
    )
    .with_retry_after(VERIFY_AFTER)
}

/// What the caller is told whose own attempt left the call in doubt: outcome and action are those of a
/// later call ([`in_doubt`], [`still_in_doubt`]).
pub(crate) fn left_in_doubt(on_doubt: OnDoubt) -> Refusal {
    let (action, message, without_key) = match on_doubt {
        OnDoubt::Fail => {
            let message = "This call ended without telling whether it took effect. Ask the operator to look \
                           before repeating it.";
            (Action::AskOperator, message, message)
        }
        OnDoubt::Rerun | OnDoubt::Verify => (
            Action::RetrySameKey,
            "This call ended without telling whether it took effect. Send the same call with the same key \
             again to find out; do not use a new key.",
            "This call ended without telling whether it took effect. Send exactly the same call again to \
             find out, without adding a key.",
        ),
    };
    let (kind, unknown) = (ErrorKind::OutcomeUnknown, CommitOutcome::Unknown);
    let refusal =
        Refusal::new(kind, unknown, action, message).with_message_without_key(without_key);
    match action {
        Action::RetrySameKey => refusal.with_retry_after(VERIFY_AFTER),
        _ => refusal,
    }
}

pub(crate) fn too_large() -> Refusal {
    Refusal::new(
        ErrorKind::ResultTooLarge,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed and its effect is committed, but its \
         result is not kept: it was too large, or an operator knew only that the call took effect. It \
         was not executed again; do not repeat it with a new key.",
    )
    .with_message_without_key(
        "An equal call made earlier was executed and its effect is committed, but its result is not \
         kept: it was too large, or an operator knew only that the call took effect. This one was not \
         executed; do not repeat it.",
    )
}

/// The call was executed, but its stored result cannot be read. It may be an error.
#[must_use]
pub fn unreadable() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The call with this idempotency key was executed, but its stored result cannot be read. It \
         was not executed again.",
    )
    .with_message_without_key(
        "An equal call made earlier was executed, but its stored result cannot be read. This one was \
         not executed.",
    )
}

/// The call was executed, and its stored result is of an earlier form of the tool.
#[must_use]
pub fn outdated() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed and its effect is committed. The form of the \
         tool's results has changed since, so the recorded one is not this answer, but comes with it. The call was not \
         executed again; do not repeat it with a new key.",
    )
    .with_message_without_key(
        "An equal call made earlier was executed and its effect is committed. The form of the tool's \
         results has changed since, so the recorded one is not this answer, but comes with it. This call was not \
         executed; do not repeat it.",
    )
}
