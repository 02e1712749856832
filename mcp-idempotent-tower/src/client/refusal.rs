//! Refusals, as a client reads them back.

use std::{fmt, time::Duration};

use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind};
use rmcp::{ErrorData, model::CallToolResult, service::ServiceError};
use serde_json::{Map, Value};

use crate::wire;

/// What a server may say, as listed in `docs/wire.md`.
const SAID: &[(ErrorKind, &[(CommitOutcome, Action)])] = {
    use Action::{AskOperator, RetrySameKey, UseNewKey, Wait};
    use CommitOutcome::{Committed, NotCommitted, Unknown};
    &[
        (
            ErrorKind::KeyInvalid,
            &[(NotCommitted, UseNewKey), (NotCommitted, RetrySameKey)],
        ),
        (ErrorKind::KeyRequired, &[(NotCommitted, UseNewKey)]),
        (ErrorKind::KeyConflict, &[(NotCommitted, UseNewKey)]),
        (ErrorKind::KeyRotated, &[(NotCommitted, UseNewKey)]),
        (
            ErrorKind::KeyInProgress,
            &[(Unknown, Wait), (NotCommitted, UseNewKey)],
        ),
        (ErrorKind::KeyExpired, &[(Unknown, UseNewKey)]),
        (ErrorKind::TooManyWaiting, &[(Unknown, Wait)]),
        (ErrorKind::TooManyNewCalls, &[(NotCommitted, Wait)]),
        (ErrorKind::Unauthorized, &[(Unknown, AskOperator)]),
        (
            ErrorKind::OutcomeUnknown,
            &[
                (Unknown, AskOperator),
                (Unknown, RetrySameKey),
                (Committed, AskOperator),
            ],
        ),
        (
            ErrorKind::ResultTooLarge,
            &[(Committed, AskOperator), (Unknown, AskOperator)],
        ),
        (
            ErrorKind::StoreUnavailable,
            &[(NotCommitted, RetrySameKey), (Unknown, RetrySameKey)],
        ),
        (
            ErrorKind::NotCommitted,
            &[(NotCommitted, RetrySameKey), (NotCommitted, AskOperator)],
        ),
        (
            ErrorKind::HandlerPanicked,
            &[
                (NotCommitted, RetrySameKey),
                (Unknown, RetrySameKey),
                (Unknown, AskOperator),
            ],
        ),
        (
            ErrorKind::TransactionTooLong,
            &[
                (NotCommitted, RetrySameKey),
                (Unknown, AskOperator),
                (Unknown, RetrySameKey),
            ],
        ),
        (
            ErrorKind::Misconfigured,
            &[
                (NotCommitted, AskOperator),
                (Unknown, AskOperator),
                (Unknown, RetrySameKey),
            ],
        ),
    ]
};

/// A refusal as a client received it: `{type, outcome, action, retryAfterMs?}` and a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedRefusal {
    kind: String,
    outcome: CommitOutcome,
    action: Action,
    retry_after: Option<Duration>,
    message: String,
}

impl ReceivedRefusal {
    /// Reads the `data` of a JSON-RPC error; `None` if the error is not a refusal.
    #[must_use]
    pub fn from_error(error: &ErrorData) -> Option<Self> {
        Self::read(error.data.as_ref()?.as_object()?, || {
            error.message.to_string()
        })
    }

    /// Reads the `_meta` of a tool result, for servers that send refusals as tool results; `None`
    /// if the result is not a refusal.
    #[must_use]
    pub fn from_result(result: &CallToolResult) -> Option<Self> {
        if result.is_error != Some(true) {
            return None;
        }
        let data = result.meta.as_ref()?.get(wire::REFUSAL)?.as_object()?;
        Self::read(data, || texts(result))
    }

    /// Reads an error that rmcp's client returned; `None` if it is not a refusal.
    #[must_use]
    pub fn from_service_error(error: &ServiceError) -> Option<Self> {
        match error {
            ServiceError::McpError(error) => Self::from_error(error),
            _ => None,
        }
    }

    /// What a retry will be told, if the tool's own error left its call in doubt; `None` if it did not. The message
    /// is the tool's.
    #[must_use]
    pub fn left_by_error(error: &ErrorData) -> Option<Self> {
        let left = error.data.as_ref()?.get(wire::IN_DOUBT)?;
        Self::read(left.as_object()?, || error.message.to_string())
    }

    /// Like [`left_by_error`](Self::left_by_error), for a tool's own result with `isError`.
    #[must_use]
    pub fn left_by_result(result: &CallToolResult) -> Option<Self> {
        let left = result.meta.as_ref()?.get(wire::IN_DOUBT)?;
        Self::read(left.as_object()?, || texts(result))
    }

    /// Accepts only what a server of this version can say: anything else may mean something
    /// different.
    fn read(data: &Map<String, Value>, message: impl FnOnce() -> String) -> Option<Self> {
        let word = |name| data.get(name).and_then(Value::as_str);
        let (kind, outcome, action) = (word("type")?, word("outcome")?, word("action")?);
        let (_, says) = SAID.iter().find(|(known, _)| known.as_str() == kind)?;
        let (outcome, action) = says
            .iter()
            .find(|says| (says.0.as_str(), says.1.as_str()) == (outcome, action))?;
        Some(Self {
            kind: kind.to_owned(),
            outcome: *outcome,
            action: *action,
            retry_after: data
                .get("retryAfterMs")
                .and_then(Value::as_u64)
                .map(Duration::from_millis),
            message: message(),
        })
    }

    /// The `type`, such as `idempotency_key_conflict`.
    #[must_use]
    pub fn type_name(&self) -> &str {
        &self.kind
    }

    /// Whether it is of this kind.
    #[must_use]
    pub fn is(&self, kind: ErrorKind) -> bool {
        self.kind == kind.as_str()
    }

    /// What is known about the effect.
    #[must_use]
    pub const fn outcome(&self) -> CommitOutcome {
        self.outcome
    }

    /// What to do next.
    #[must_use]
    pub const fn action(&self) -> Action {
        self.action
    }

    /// How long to wait before the next attempt, if the server said so.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The sentence for a person or a model.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for ReceivedRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ReceivedRefusal {}

/// When a replayed result was first made, as the server wrote it (RFC 3339); `None` if `result` is
/// not a replay.
#[must_use]
pub fn replayed_at(result: &CallToolResult) -> Option<&str> {
    result.meta.as_ref()?.get(wire::REPLAYED)?["at"].as_str()
}

fn texts(result: &CallToolResult) -> String {
    let texts = result.content.iter().filter_map(|block| block.as_text());
    let texts: Vec<_> = texts.map(|text| text.text.as_str()).collect();
    texts.join("\n")
}
