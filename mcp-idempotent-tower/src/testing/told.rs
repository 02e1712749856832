//! What a caller was told.

use std::time::Duration;

use serde_json::Value;

use crate::wire;

#[derive(Debug, Clone)]
pub(super) enum Told {
    Result {
        body: Value,
        is_replay: bool,
    },
    Refused {
        kind: String,
        outcome: String,
        action: String,
        retry_after: Option<Duration>,
    },
    /// An error that is none of ours.
    Error(String),
    /// There was no answer.
    Nothing(String),
}

impl Told {
    pub(super) fn of(answer: &Value) -> Self {
        if let Some(error) = answer.get("error") {
            return Self::refused(&error["data"]).unwrap_or_else(|| {
                Self::Error(error["message"].as_str().unwrap_or("?").to_owned())
            });
        }
        let result = &answer["result"];
        if let Some(refused) = result["_meta"].get(wire::REFUSAL).and_then(Self::refused) {
            return refused;
        }
        if result["isError"] == true {
            let text = result["content"][0]["text"].as_str();
            return Self::Error(text.unwrap_or("a tool result with isError").to_owned());
        }
        let body = result.get("structuredContent").filter(|it| !it.is_null());
        Self::Result {
            body: body.unwrap_or(&result["content"]).clone(),
            is_replay: result["_meta"].get(wire::REPLAYED).is_some(),
        }
    }

    fn refused(data: &Value) -> Option<Self> {
        let text = |name: &str| data[name].as_str().map(str::to_owned);
        Some(Self::Refused {
            kind: text("type")?,
            outcome: text("outcome").unwrap_or_default(),
            action: text("action").unwrap_or_default(),
            retry_after: data["retryAfterMs"].as_u64().map(Duration::from_millis),
        })
    }

    pub(super) const fn body(&self) -> Option<&Value> {
        match self {
            Self::Result { body, .. } => Some(body),
            _ => None,
        }
    }

    pub(super) const fn is_first_result(&self) -> bool {
        matches!(
            self,
            Self::Result {
                is_replay: false,
                ..
            }
        )
    }

    /// Whether it says that nobody knows whether the call took effect.
    pub(super) fn is_doubt(&self) -> bool {
        matches!(self, Self::Refused { outcome, .. } if outcome == "unknown")
    }

    /// How long to wait before the same call is sent again, if that is what it says.
    pub(super) fn repeat_after(&self) -> Option<Duration> {
        match self {
            Self::Refused {
                action,
                retry_after,
                ..
            } if action == "wait" || action == "retry_same_key" => {
                Some(retry_after.unwrap_or_default())
            }
            _ => None,
        }
    }

    /// A few words for a table.
    pub(super) fn label(&self) -> &str {
        match self {
            Self::Result {
                is_replay: true, ..
            } => "replay",
            Self::Result { .. } => "result",
            Self::Refused { kind, .. } => kind,
            Self::Error(_) => "error",
            Self::Nothing(_) => "no answer",
        }
    }

    /// Everything, for a sentence.
    pub(super) fn said(&self) -> String {
        match self {
            Self::Result { body, .. } => format!("the result {body}"),
            Self::Refused { kind, outcome, .. } => format!("{kind} (outcome {outcome})"),
            Self::Error(text) => format!("the error {text:?}"),
            Self::Nothing(why) => format!("nothing ({why})"),
        }
    }
}

/// Whether two results are one, but for the block by which a replay may tell a model that it is one.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    let blocks = |body: &Value| body.as_array().cloned();
    match (blocks(one), blocks(other)) {
        (Some(one), Some(other)) => {
            let (short, long) = if one.len() < other.len() {
                (one, other)
            } else {
                (other, one)
            };
            long.len() - short.len() <= 1 && long.starts_with(&short)
        }
        _ => one == other,
    }
}
