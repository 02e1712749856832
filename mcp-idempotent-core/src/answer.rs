//! What a caller is told about a record. This is the only such table, for calls and for status
//! requests.

use bytes::Bytes;

use crate::{
    error::Refusal,
    fingerprint::Identity,
    policy::OnDoubt,
    record::{Record, RecordState, Timestamp},
    refusal,
};

/// The answer to one call.
#[derive(Debug, Clone)]
#[expect(clippy::exhaustive_enums, reason = "a caller must handle every answer")]
pub enum Answer {
    /// The handler ran for this caller. Give it the handler's own result.
    Executed,
    /// The same, but the result could not be recorded: a retry will be told that the outcome is
    /// unknown.
    Unrecorded,
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
}

impl Replay {
    pub(crate) const fn new(response: Bytes, at: Option<Timestamp>, joined: bool) -> Self {
        Self {
            response,
            at,
            joined,
        }
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a record's state alone means to a caller. `None` if the caller gets the recorded result.
///
/// | The record is … | What the caller is told | What to do next |
/// | --- | --- | --- |
/// | in progress | the call has not ended | wait |
/// | completed, with its result | the result | – |
/// | completed, too large to keep | the effect is committed | ask the operator |
/// | in doubt, under `fail` | the outcome is unknown | ask the operator |
/// | in doubt, under `rerun` or `verify` | the outcome is unknown | retry with the same key |
/// | expired | the result is no longer kept | use a new key |
#[must_use]
pub fn refusal_of(state: &RecordState, on_doubt: OnDoubt) -> Option<Refusal> {
    match state {
        RecordState::InProgress { .. } => Some(refusal::in_progress()),
        RecordState::Completed {
            response: Some(_), ..
        } => None,
        RecordState::Completed { response: None, .. } => Some(refusal::too_large()),
        RecordState::InDoubt { .. } => Some(match on_doubt {
            OnDoubt::Fail => refusal::in_doubt(),
            // The policy offers a way out, and another call starts it.
            OnDoubt::Rerun | OnDoubt::Verify => refusal::still_in_doubt(),
        }),
        RecordState::Expired => Some(refusal::expired()),
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
        return refusal::conflict().into();
    }
    match refusal_of(&record.state, on_doubt) {
        Some(refusal) => refusal.into(),
        None => match record.state {
            RecordState::Completed {
                response: Some(response),
                at,
            } => Answer::Replayed(Replay::new(response, Some(at), joined)),
            _ => refusal::in_progress().into(),
        },
    }
}
