//! A tool's result: as bytes, and as an answer.

use mcp_idempotent_core::{Bytes, HandlerResult, Refusal, Replay, ResultKind};
use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult, CreateTaskResult, ErrorCode, InputRequiredResult},
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{ToolResult, not_executed::NotExecuted, provenance, refusal, reply::Reply};
use crate::Idempotency;

/// The first byte of a stored result: the version of this format.
const VERSION: u8 = 1;

/// The second byte: the kind of result that follows as JSON.
pub(crate) mod tag {
    pub(crate) const RESULT: u8 = b'r';
    pub(crate) const TASK: u8 = b't';
    pub(crate) const INPUT_REQUIRED: u8 = b'i';
    pub(crate) const ERROR: u8 = b'e';
}

/// How a handler ended, and what it returned.
#[derive(Debug)]
pub(crate) struct Handled {
    pub(crate) kind: ResultKind,
    pub(crate) result: ToolResult,
}

impl Handled {
    /// The answer of the author's code. What it passes on from another server is marked as such.
    pub(crate) fn by_author(mut result: ToolResult) -> Self {
        provenance::settle(&mut result);
        Self::returned(result)
    }

    /// As [`by_author`](Self::by_author), if a service below has already marked it.
    pub(crate) fn returned(mut result: ToolResult) -> Self {
        let kind = match &mut result {
            Ok(CallToolResponse::Complete(result)) if result.is_error == Some(true) => {
                ResultKind::ErrorResult
            }
            Ok(CallToolResponse::InputRequired(_)) => ResultKind::InputRequired,
            Ok(CallToolResponse::Task(_)) => ResultKind::Task,
            Ok(_) => ResultKind::Success,
            Err(error) => {
                if NotExecuted::unmark(error) {
                    ResultKind::NotExecuted
                } else {
                    ResultKind::ProtocolError
                }
            }
        };
        Self { kind, result }
    }

    /// The answer of an extractor that refused the call.
    pub(crate) fn not_called(error: ErrorData) -> Self {
        Self {
            kind: ResultKind::NotCalled,
            ..Self::by_author(Err(error))
        }
    }
}

impl HandlerResult for Handled {
    fn kind(&self) -> ResultKind {
        self.kind
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(match &self.result {
            Ok(CallToolResponse::Complete(result)) => bytes(tag::RESULT, result)?,
            Ok(CallToolResponse::Task(task)) => bytes(tag::TASK, task)?,
            Ok(CallToolResponse::InputRequired(required)) => bytes(tag::INPUT_REQUIRED, required)?,
            Ok(_) => return Err("a kind of tool result that this version does not know".into()),
            Err(error) => bytes(tag::ERROR, error)?,
        })
    }
}

/// The JSON of a result, as it is stored.
pub(crate) fn stored(tag: u8, json: &str) -> Bytes {
    [&[VERSION, tag], json.as_bytes()].concat().into()
}

/// The tag and the JSON of a stored result. `None` if this version does not know its form.
pub(crate) fn unstored(stored: &[u8]) -> Option<(u8, &str)> {
    let [VERSION, tag, json @ ..] = stored else {
        return None;
    };
    Some((*tag, std::str::from_utf8(json).ok()?))
}

fn bytes(tag: u8, value: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend([VERSION, tag]);
    serde_json::to_writer(&mut bytes, value)?;
    Ok(bytes.into())
}

/// What the client gets.
pub(crate) fn answer<S>(idempotency: &Idempotency<S>, reply: Reply<Handled>) -> ToolResult {
    match reply {
        Reply::Ran(handled) => handled.result,
        Reply::Refused(refusal) => refuse(idempotency, &refusal),
        Reply::Replayed(recorded) => replay(&recorded, idempotency.settings().announce_replays)
            .unwrap_or_else(|error| {
                tracing::error!(%error, "a stored result could not be read");
                refuse(idempotency, &refusal::unreadable())
            }),
    }
}

/// A refusal, in the form that this server's settings ask for.
pub(crate) fn refuse<S>(idempotency: &Idempotency<S>, refusal: &Refusal) -> ToolResult {
    if idempotency.settings().refusals_as_results {
        Ok(refusal::error_result(refusal).into())
    } else {
        Err(refusal::error_data(refusal))
    }
}

/// The recorded result, marked as a replay.
///
/// # Errors
///
/// This version does not know the form of the bytes.
pub(crate) fn replay(replay: &Replay, announce: bool) -> Result<ToolResult, serde_json::Error> {
    let mut result = decode(&replay.response)?;
    let Some(at) = replay.at else {
        return Ok(result);
    };
    match &mut result {
        Ok(CallToolResponse::Complete(result)) => {
            refusal::mark_replayed(&mut result.meta, at);
            if announce {
                result.content.push(refusal::replay_notice(at));
            }
        }
        Ok(CallToolResponse::Task(task)) => refusal::mark_replayed(&mut task.meta, at),
        // An error has no `_meta`.
        Ok(_) | Err(_) => {}
    }
    Ok(result)
}

/// The recorded result, as it was recorded.
///
/// # Errors
///
/// As for [`replay`].
pub(crate) fn decode(stored: &[u8]) -> Result<ToolResult, serde_json::Error> {
    let [VERSION, tag, json @ ..] = stored else {
        return Err(unknown_form());
    };
    Ok(match *tag {
        tag::RESULT => Ok(from::<CallToolResult>(json)?.into()),
        tag::TASK => Ok(CallToolResponse::Task(from::<CreateTaskResult>(json)?)),
        tag::INPUT_REQUIRED => Ok(from::<InputRequiredResult>(json)?.into()),
        tag::ERROR => {
            let error = from::<StoredError>(json)?;
            Err(ErrorData::new(error.code, error.message, error.data))
        }
        _ => return Err(unknown_form()),
    })
}

fn from<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(json)
}

fn unknown_form() -> serde_json::Error {
    serde::de::Error::custom("a stored result of an unknown form")
}

/// As [`ErrorData`], but `data: null` stays apart from no `data`.
#[derive(Deserialize)]
struct StoredError {
    code: ErrorCode,
    message: String,
    #[serde(default, deserialize_with = "present")]
    data: Option<Value>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}
