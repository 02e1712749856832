//! A tool's result: as bytes, and as an answer.

pub(crate) mod entries;
pub(crate) mod marker;
pub(crate) mod not_executed;
pub(crate) mod on_replay;
pub(crate) mod provenance;
pub(crate) mod reader;
pub mod refusal;
pub(crate) mod seal;

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::FutureExt as _;
use mcp_idempotent_core::{
    Bytes, HandlerResult, OnErrorResult, Refusal, Replay, ResultKind, RotatedKey, answer,
};
use rmcp::{
    ErrorData,
    model::{
        CallToolResponse, CallToolResult, ContentBlock, CreateTaskResult, ErrorCode,
        InputRequiredResult,
    },
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use self::{not_executed::NotExecuted, reader::Reader};
use super::{
    Classify, ToolResult,
    reply::{Recorded, Reply},
    schema::SchemaHash,
};
use crate::{Idempotency, wire};

/// The first byte of a stored result: the version of this format.
const VERSION: u8 = 1;

/// The second byte: the kind of result that follows as JSON.
pub(crate) mod tag {
    pub(crate) const RESULT: u8 = b'r';
    /// A hash of the tool's output schema comes first.
    pub(crate) const RESULT_OF_SCHEMA: u8 = b's';
    pub(crate) const TASK: u8 = b't';
    pub(crate) const INPUT_REQUIRED: u8 = b'i';
    pub(crate) const ERROR: u8 = b'e';
}

/// How a handler ended, and what it returned.
#[derive(Debug)]
pub(crate) struct Handled {
    pub(crate) kind: ResultKind,
    pub(crate) result: ToolResult,
    /// What the author's classifier says about a result with `isError`.
    on_error_result: Option<OnErrorResult>,
    /// The tool's output schema, to be stored with the result.
    schema: Option<SchemaHash>,
}

impl Handled {
    /// The answer of the author's code. What it passes on from another server is labelled as that server's.
    pub(crate) fn by_author(mut result: ToolResult) -> Self {
        let is_not_executed = provenance::settle(&mut result);
        Self::of(result, is_not_executed)
    }

    /// As [`by_author`](Self::by_author), if a service below has already settled it.
    pub(crate) fn settled(mut result: ToolResult) -> Self {
        let is_not_executed = NotExecuted::unmark(&mut result);
        Self::of(result, is_not_executed)
    }

    fn of(result: ToolResult, is_not_executed: bool) -> Self {
        let kind = match &result {
            _ if is_not_executed => ResultKind::NotExecuted,
            // Another service of ours, or a server that the handler asked, refused the call. A refusal is no
            // result that could be kept: it may be out of date a moment later.
            Ok(CallToolResponse::Complete(result))
                if refusal::is_refusal(result) || refusal::is_refusal_of_upstream(result) =>
            {
                ResultKind::ProtocolError
            }
            Ok(CallToolResponse::Complete(result)) if result.is_error == Some(true) => {
                ResultKind::ErrorResult
            }
            Ok(CallToolResponse::InputRequired(_)) => ResultKind::InputRequired,
            Ok(CallToolResponse::Task(_)) => ResultKind::Task,
            Ok(_) => ResultKind::Success,
            Err(_) => ResultKind::ProtocolError,
        };
        Self {
            kind,
            result,
            on_error_result: None,
            schema: None,
        }
    }

    /// A service below the layer has failed.
    pub(crate) const fn failed(kind: ResultKind, error: ErrorData) -> Self {
        Self {
            kind,
            result: Err(error),
            on_error_result: None,
            schema: None,
        }
    }

    /// Asks the author's classifier about a result with `isError`.
    pub(crate) fn classified(mut self, classify: Option<&Classify>) -> Self {
        if self.kind == ResultKind::ErrorResult
            && let (Some(classify), Ok(CallToolResponse::Complete(result))) =
                (classify, &self.result)
        {
            self.on_error_result = Some(classify(result));
        }
        self
    }

    /// Keeps the tool's output schema with a structured result.
    pub(crate) fn under_schema(mut self, schema: Option<SchemaHash>) -> Self {
        self.schema = schema;
        self
    }

    /// The answer, for our layer that runs the call: with the `NotExecuted` mark if there was one.
    pub(crate) fn with_not_executed(mut self) -> ToolResult {
        if matches!(self.kind, ResultKind::NotExecuted | ResultKind::NotCalled) {
            NotExecuted::mark_answer(&mut self.result);
        }
        self.result
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

    fn on_error_result(&self) -> Option<OnErrorResult> {
        self.on_error_result
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(match &self.result {
            Ok(CallToolResponse::Complete(result)) => match &self.schema {
                Some(schema) if result.structured_content.is_some() => {
                    bytes(tag::RESULT_OF_SCHEMA, schema.as_bytes(), result)?
                }
                _ => bytes(tag::RESULT, &[], result)?,
            },
            Ok(CallToolResponse::Task(task)) => bytes(tag::TASK, &[], task)?,
            Ok(CallToolResponse::InputRequired(required)) => {
                bytes(tag::INPUT_REQUIRED, &[], required)?
            }
            Ok(_) => return Err("a kind of tool result that this version does not know".into()),
            Err(error) => bytes(tag::ERROR, &[], error)?,
        })
    }
}

/// The JSON of a result, as it is stored.
#[cfg(feature = "relay")]
pub(crate) fn stored(tag: u8, json: &str) -> Bytes {
    [&[VERSION, tag], json.as_bytes()].concat().into()
}

/// The tag and the JSON of a stored result. `None` if this version does not know its form.
#[cfg(feature = "relay")]
pub(crate) fn unstored(stored: &[u8]) -> Option<(u8, &str)> {
    let [VERSION, tag, json @ ..] = stored else {
        return None;
    };
    Some((*tag, std::str::from_utf8(json).ok()?))
}

fn bytes(tag: u8, head: &[u8], value: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend([VERSION, tag]);
    bytes.extend(head);
    serde_json::to_writer(&mut bytes, value)?;
    Ok(bytes.into())
}

/// What the client gets.
pub(crate) fn answer<S>(
    idempotency: &Idempotency<S>,
    reader: &Reader,
    reply: Reply<Handled>,
) -> ToolResult {
    // The handler, or a service below, may have returned an error of ours.
    reader.answered(match reply {
        Reply::Ran(own) => {
            let mut result = match own.record {
                Recorded::AsPlanned => own.result.result,
                Recorded::Not => unrecorded(own.result.result),
                Recorded::InDoubt(refusal) => left_in_doubt(own.result.result, &refusal, reader),
            };
            if let Some(rotated) = own.rotated {
                let announce = idempotency.settings().announce_replays;
                tell_of_rotated_key(&mut result, rotated, announce);
            }
            result
        }
        Reply::Refused(refusal) => reader.refused(&refusal),
        Reply::Replayed(recorded) if is_of_another_schema(&recorded, reader) => {
            outdated(reader, &recorded)
        }
        Reply::Replayed(recorded) => {
            let announce = idempotency.settings().announce_replays;
            replay(&recorded, reader, announce).unwrap_or_else(|error| {
                tracing::error!(%error, "a stored result could not be read");
                reader.refused(&answer::unreadable())
            })
        }
    })
}

/// Says that there is no record, beside a result that should have one.
fn unrecorded(mut result: ToolResult) -> ToolResult {
    match &mut result {
        Ok(CallToolResponse::Complete(result)) => marker::add_unrecorded(&mut result.meta),
        Ok(CallToolResponse::Task(task)) => marker::add_unrecorded(&mut task.meta),
        // No other answer is recorded.
        Ok(_) | Err(_) => {}
    }
    result
}

/// Says that an equal call under another key was found.
fn tell_of_rotated_key(result: &mut ToolResult, rotated: RotatedKey, announce: bool) {
    match result {
        Ok(CallToolResponse::Complete(result)) => {
            marker::add_rotated(&mut result.meta, rotated.at);
            if announce {
                let notice = ContentBlock::text(Reader::rotated_notice(rotated.at));
                result.content.push(notice);
            }
        }
        Ok(CallToolResponse::Task(task)) => marker::add_rotated(&mut task.meta, rotated.at),
        // An error has no `_meta`, and other answers are not final.
        Ok(_) | Err(_) => {}
    }
}

/// Says what a retry will be told, beside the handler's own error.
fn left_in_doubt(mut result: ToolResult, refusal: &Refusal, reader: &Reader) -> ToolResult {
    match &mut result {
        Ok(CallToolResponse::Complete(result)) => {
            marker::add_in_doubt(&mut result.meta, refusal);
            if let Some(notice) = reader.doubt_notice(refusal) {
                result.content.push(ContentBlock::text(notice));
            }
        }
        Err(error) => marker::add_in_doubt_to_data(&mut error.data, refusal),
        // It asks for another round, which will tell.
        Ok(_) => {}
    }
    result
}

/// Whether the tool's output schema has changed since the result was recorded.
fn is_of_another_schema(recorded: &Replay, reader: &Reader) -> bool {
    let then = split(&recorded.response).ok().and_then(|(_, then, _)| then);
    then.zip(reader.schema)
        .is_some_and(|(then, now)| then != now)
}

/// Says what was committed: a client that validates results would not accept the recorded one.
fn outdated(reader: &Reader, recorded: &Replay) -> ToolResult {
    let mut answer = reader.refused(&answer::outdated());
    let Ok(Ok(CallToolResponse::Complete(response))) = decode(&recorded.response) else {
        return answer;
    };
    let result = json!(response);
    let data = match &mut answer {
        Ok(CallToolResponse::Complete(refused)) => {
            // A model sees the content only.
            refused.content.extend(response.content);
            let meta = refused.meta.as_mut();
            meta.and_then(|meta| meta.get_mut(wire::REFUSAL))
        }
        Ok(_) => None,
        Err(error) => error.data.as_mut(),
    };
    if let Some(data) = data {
        data["result"] = result;
    }
    answer
}

/// The answer of code that may call the author's. If that panics, `panicked` is the answer: rmcp would send
/// none.
pub(crate) fn answered<T>(
    code: impl Future<Output = Result<T, ErrorData>>,
    panicked: fn() -> ErrorData,
) -> impl Future<Output = Result<T, ErrorData>> {
    // Not an `async fn`, which would store its argument twice.
    AssertUnwindSafe(code)
        .catch_unwind()
        .map(move |answer| answer.unwrap_or_else(|_| Err(panicked())))
}

/// The recorded result, with the marker of a replay.
///
/// # Errors
///
/// This version does not know the form of the bytes.
fn replay(
    replay: &Replay,
    reader: &Reader,
    announce: bool,
) -> Result<ToolResult, serde_json::Error> {
    let mut result = decode(&replay.response)?;
    let Some(at) = replay.at else {
        return Ok(result);
    };
    match &mut result {
        Ok(CallToolResponse::Complete(result)) => {
            marker::add_replayed(&mut result.meta, at);
            if replay.rotated {
                marker::add_rotated(&mut result.meta, Some(at));
            }
            if announce {
                let notice = ContentBlock::text(reader.notice(replay, at));
                result.content.push(notice);
            }
        }
        Ok(CallToolResponse::Task(task)) => marker::add_replayed(&mut task.meta, at),
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
    let (tag, _, json) = split(stored)?;
    Ok(match tag {
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

/// The tag, the output schema if it is there, and the JSON.
fn split(stored: &[u8]) -> Result<(u8, Option<SchemaHash>, &[u8]), serde_json::Error> {
    let [VERSION, tag, rest @ ..] = stored else {
        return Err(unknown_form());
    };
    if *tag != tag::RESULT_OF_SCHEMA {
        return Ok((*tag, None, rest));
    }
    let (schema, json) = rest.split_first_chunk().ok_or_else(unknown_form)?;
    Ok((tag::RESULT, Some(SchemaHash::from_bytes(*schema)), json))
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
