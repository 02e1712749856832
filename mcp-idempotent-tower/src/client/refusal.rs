//! What a server says when it gives no result, read back.

use std::{fmt, time::Duration};

use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind};
use rmcp::{ErrorData, model::CallToolResult, service::ServiceError};
use serde_json::{Map, Value};

use crate::wire;

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
    /// Reads the `data` of a JSON-RPC error; `None` where the error is no refusal.
    #[must_use]
    pub fn from_error(error: &ErrorData) -> Option<Self> {
        Self::read(error.data.as_ref()?.as_object()?, || {
            error.message.to_string()
        })
    }

    /// Reads the `_meta` of a tool result, where a server gives its refusals as tool results;
    /// `None` where the result is no refusal.
    #[must_use]
    pub fn from_result(result: &CallToolResult) -> Option<Self> {
        if result.is_error != Some(true) {
            return None;
        }
        let data = result.meta.as_ref()?.get(wire::REFUSAL)?.as_object()?;
        Self::read(data, || {
            let texts = result.content.iter().filter_map(|block| block.as_text());
            let texts: Vec<_> = texts.map(|text| text.text.as_str()).collect();
            texts.join("\n")
        })
    }

    /// Reads what rmcp's client returned; `None` where it is no refusal.
    #[must_use]
    pub fn from_service_error(error: &ServiceError) -> Option<Self> {
        match error {
            ServiceError::McpError(error) => Self::from_error(error),
            _ => None,
        }
    }

    /// Words that this version does not know make it no refusal: what they ask for is not known.
    fn read(data: &Map<String, Value>, message: impl FnOnce() -> String) -> Option<Self> {
        let word = |name| data.get(name).and_then(Value::as_str);
        let kind = word("type").filter(|kind| kind.starts_with("idempotency_"))?;
        Some(Self {
            kind: kind.to_owned(),
            outcome: outcome(word("outcome")?)?,
            action: action(word("action")?)?,
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

    /// How long to wait before the next try, where the server said so.
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

/// When the result was first made, as the server wrote it (RFC 3339), where `result` is a replay;
/// `None` where this call made it.
#[must_use]
pub fn replayed_at(result: &CallToolResult) -> Option<&str> {
    result.meta.as_ref()?.get(wire::REPLAYED)?["at"].as_str()
}

fn outcome(word: &str) -> Option<CommitOutcome> {
    use CommitOutcome::{Committed, NotCommitted, Unknown};
    [Committed, NotCommitted, Unknown]
        .into_iter()
        .find(|outcome| outcome.as_str() == word)
}

fn action(word: &str) -> Option<Action> {
    use Action::{AskOperator, RetrySameKey, UseNewKey, Wait};
    [RetrySameKey, UseNewKey, Wait, AskOperator]
        .into_iter()
        .find(|action| action.as_str() == word)
}
