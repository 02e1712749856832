//! One call by rmcp's client, and what the client sees of it.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use anyhow::Context as _;
use mcp_idempotent_tower::wire;
use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject,
        RequestMetaObject, ServerResult,
    },
    service::PeerRequestOptions,
};
use serde_json::json;

use crate::{payments::charge::Receipt, process::PATIENCE};

/// A call, which may be sent any number of times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// Which tool.
    pub tool: &'static str,
    /// Whose card.
    pub customer: String,
    /// How much.
    pub amount_cents: i64,
    /// The idempotency key.
    pub key: String,
}

impl Call {
    /// A call of `tool`.
    #[must_use]
    pub fn new(tool: &'static str, customer: &str, key: impl Into<String>) -> Self {
        Self {
            tool,
            customer: customer.to_owned(),
            amount_cents: 1999,
            key: key.into(),
        }
    }

    fn request(&self) -> ClientRequest {
        let mut meta = RequestMetaObject::new();
        meta.insert(wire::KEY.to_owned(), self.key.as_str().into());
        let mut arguments = JsonObject::new();
        arguments.insert("customer".into(), json!(self.customer));
        arguments.insert("amount_cents".into(), json!(self.amount_cents));
        let mut params = CallToolRequestParams::new(self.tool).with_arguments(arguments);
        params.meta = Some(meta);
        ClientRequest::CallToolRequest(CallToolRequest::new(params))
    }

    /// Sends it and waits for the answer.
    ///
    /// # Errors
    ///
    /// The answer is nothing that a client can make sense of.
    pub async fn send(&self, peer: &Peer<RoleClient>) -> anyhow::Result<Seen> {
        self.send_with_timeout(peer, PATIENCE, async { Ok(()) })
            .await
    }

    /// Sends it, and waits so long once it `has_begun`; then tells the server that the call is
    /// cancelled.
    ///
    /// # Errors
    ///
    /// The answer is nothing that a client can make sense of, or the call has not begun.
    pub async fn send_with_timeout(
        &self,
        peer: &Peer<RoleClient>,
        timeout: Duration,
        has_begun: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<Seen> {
        let options = PeerRequestOptions::with_timeout(timeout);
        let answer = match peer.send_request_with_option(self.request(), options).await {
            Ok(sent) => {
                has_begun.await?;
                sent.await_response().await
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(ServerResult::CallToolResult(result)) => Seen::result(&result),
            Ok(other) => anyhow::bail!("the server answered a tool call with {other:?}"),
            Err(ServiceError::Timeout { .. }) => Ok(Seen::TimeOut),
            Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) => {
                Ok(Seen::ConnectionLost)
            }
            Err(ServiceError::McpError(error)) => {
                let kind = error.data.as_ref().and_then(|data| data["type"].as_str());
                let kind = kind.with_context(|| format!("the server answered: {error}"))?;
                Ok(Seen::Refusal(kind.to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// What the client sees of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// No answer in time.
    TimeOut,
    /// The server went away.
    ConnectionLost,
    /// The receipt of this charge, made by this call.
    Receipt(i64),
    /// The receipt of this charge, marked as the result of an earlier call.
    Replay(i64),
    /// An error of this type.
    Refusal(String),
}

impl Seen {
    fn result(result: &CallToolResult) -> anyhow::Result<Self> {
        let structured = result.structured_content.clone();
        let receipt: Receipt = structured
            .and_then(|structured| serde_json::from_value(structured).ok())
            .with_context(|| format!("the tool answered with no receipt: {result:?}"))?;
        let meta = result.meta.as_ref();
        Ok(match meta.and_then(|meta| meta.get(wire::REPLAYED)) {
            Some(_) => Self::Replay(receipt.charge_id),
            None => Self::Receipt(receipt.charge_id),
        })
    }
}

/// How many different charges the client has receipts of.
#[must_use]
pub fn different_charges(seen: &[Seen]) -> usize {
    let charges: BTreeSet<_> = seen
        .iter()
        .filter_map(|seen| match seen {
            Seen::Receipt(id) | Seen::Replay(id) => Some(id),
            _ => None,
        })
        .collect();
    charges.len()
}

/// What the client has seen, in a few words.
#[must_use]
pub fn summary(seen: &[Seen]) -> String {
    let count = |matches: fn(&Seen) -> bool| seen.iter().filter(|seen| matches(seen)).count();
    let mut summary = String::new();
    for (count, one, more) in [
        (count(|seen| *seen == Seen::TimeOut), "timeout", "timeouts"),
        (
            count(|seen| *seen == Seen::ConnectionLost),
            "cut off",
            "cut off",
        ),
        (
            count(|seen| matches!(seen, Seen::Receipt(_))),
            "receipt",
            "receipts",
        ),
        (
            count(|seen| matches!(seen, Seen::Replay(_))),
            "replay",
            "replays",
        ),
    ] {
        let comma = if summary.is_empty() { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match count {
            0 => Ok(()),
            1 => write!(summary, "{comma}{one}"),
            count => write!(summary, "{comma}{count} {more}"),
        };
    }
    for seen in seen {
        if let Seen::Refusal(kind) = seen {
            let comma = if summary.is_empty() { "" } else { ", " };
            let kind = kind.strip_prefix("idempotency_").unwrap_or(kind);
            let _ = write!(summary, "{comma}{kind}");
        }
    }
    summary
}
