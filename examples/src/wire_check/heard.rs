//! What an answer to a call says.

use serde_json::{Value, json};

/// The answer to a call.
#[derive(Debug, Clone)]
pub(super) enum Heard {
    Result {
        body: Value,
        is_replay: bool,
    },
    /// A refusal, as an error (with its code) or as a result.
    Refused {
        data: Value,
        code: Option<i64>,
    },
    /// Something that is neither.
    Other(String),
}

const REPLAYED: &str = "io.github.mcp-idempotent/replayed";
const REFUSAL: &str = "io.github.mcp-idempotent/refusal";

impl Heard {
    pub(super) fn of(answer: &Value) -> Self {
        if let Some(error) = answer.get("error") {
            return if error["data"]["type"].is_string() {
                Self::Refused {
                    data: error["data"].clone(),
                    code: error["code"].as_i64(),
                }
            } else {
                Self::Other(error.to_string())
            };
        }
        let result = &answer["result"];
        if let Some(data) = result["_meta"].get(REFUSAL) {
            return Self::Refused {
                data: data.clone(),
                code: None,
            };
        }
        if result["isError"] == true {
            return Self::Other(result.to_string());
        }
        let is_replay = result["_meta"].get(REPLAYED).is_some();
        // A replay may have one block more, which tells a model about it.
        let body = match result.get("structuredContent") {
            Some(structured) => structured.clone(),
            None => json!([result["content"][0]]),
        };
        Self::Result { body, is_replay }
    }

    /// What was done, if something was.
    pub(super) fn body(&self) -> Option<&Value> {
        match self {
            Self::Result { body, .. } => Some(body),
            _ => None,
        }
    }

    fn said(&self) -> String {
        match self {
            Self::Result {
                body,
                is_replay: true,
            } => format!("a replay: {body}"),
            Self::Result {
                body,
                is_replay: false,
            } => format!("a result: {body}"),
            Self::Refused { data, code } => format!("a refusal (code {code:?}): {data}"),
            Self::Other(text) => text.clone(),
        }
    }

    /// Why this is not a replay of that result.
    pub(super) fn unless_replay_of(&self, first: &Value) -> Option<String> {
        match self {
            Self::Result {
                body,
                is_replay: true,
            } if body == first => None,
            Self::Result {
                is_replay: false,
                body,
            } if body == first => Some("no mark of a replay".into()),
            Self::Result { body, .. } => Some(format!("another result: {body}")),
            other => Some(other.said()),
        }
    }

    /// Why this is not the result of a new execution.
    pub(super) fn unless_new(&self, first: &Value) -> Option<String> {
        match self {
            Self::Result {
                body,
                is_replay: false,
            } if body != first => None,
            other => Some(format!("not a new execution: {}", other.said())),
        }
    }

    /// Why this is not this refusal.
    pub(super) fn unless_refused(&self, kind: &str, outcome: &str, action: &str) -> Option<String> {
        match self {
            Self::Refused { data, code }
                if data["type"] == kind
                    && data["outcome"] == outcome
                    && data["action"] == action
                    && code.is_none_or(|code| code == -32602) =>
            {
                None
            }
            other => Some(format!("not {kind}, {outcome}, {action}: {}", other.said())),
        }
    }
}
