//! One call by rmcp's client, and what the client sees of it.

use std::{fmt::Write as _, time::Duration};

use anyhow::Context as _;
use mcp_idempotent_tower::wire;
use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, RequestMetaObject,
        ServerResult,
    },
    service::PeerRequestOptions,
};

use crate::process::PATIENCE;

/// Between an answer that leaves something open and the retry.
const PAUSE: Duration = Duration::from_millis(50);
const TRIES: usize = 40;

/// A call, which may be sent any number of times.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// Which tool.
    pub tool: &'static str,
    /// Its arguments.
    pub arguments: JsonObject,
}

/// What the client sees of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seen {
    /// The server went away.
    CutOff,
    /// The tool's own error.
    Error,
    /// A refusal of this type, and whether an operator has to look before anything is repeated.
    Refusal(String, bool),
    /// The number of the charge that the call made.
    Result(String),
    /// The same, marked as the result of an earlier call.
    Replay(String),
}

impl Seen {
    /// Whether nothing is to be gained by a retry.
    const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Result(_) | Self::Replay(_) | Self::Refusal(_, true)
        )
    }
}

impl Call {
    /// A call with one key, the same for each time that it is sent.
    #[must_use]
    pub const fn new(tool: &'static str, arguments: JsonObject) -> Self {
        Self { tool, arguments }
    }

    /// Sends it and waits for the answer.
    ///
    /// # Errors
    ///
    /// The answer is nothing that a client can make sense of.
    pub async fn send(&self, peer: &Peer<RoleClient>) -> anyhow::Result<Seen> {
        let mut meta = RequestMetaObject::new();
        meta.insert(wire::KEY.to_owned(), "intent-1".into());
        let params = CallToolRequestParams::new(self.tool).with_arguments(self.arguments.clone());
        let mut request = CallToolRequest::new(params);
        request.params.meta = Some(meta);
        let options = PeerRequestOptions::with_timeout(PATIENCE);
        let request = ClientRequest::CallToolRequest(request);
        let answer = match peer.send_request_with_option(request, options).await {
            Ok(sent) => sent.await_response().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(ServerResult::CallToolResult(result)) => {
                let structured = result.structured_content.as_ref();
                let id = structured.and_then(|result| {
                    let id = result.get("payment_id").or(result.get("receipt_id"));
                    id?.as_str().map(str::to_owned)
                });
                let id = id.with_context(|| format!("the tool answered {result:?}"))?;
                let meta = result.meta.as_ref();
                Ok(match meta.and_then(|meta| meta.get(wire::REPLAYED)) {
                    Some(_) => Seen::Replay(id),
                    None => Seen::Result(id),
                })
            }
            Ok(other) => anyhow::bail!("the server answered a tool call with {other:?}"),
            Err(ServiceError::TransportClosed | ServiceError::TransportSend(_)) => Ok(Seen::CutOff),
            Err(ServiceError::McpError(error)) => {
                let data = error.data.unwrap_or_default();
                Ok(match data["type"].as_str() {
                    Some(kind) => Seen::Refusal(kind.to_owned(), data["action"] == "ask_operator"),
                    None => Seen::Error,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Sends it until there is a result, or somebody has to look.
    ///
    /// # Errors
    ///
    /// It comes to nothing.
    pub async fn send_until_final(
        &self,
        peer: &Peer<RoleClient>,
        seen: &mut Vec<Seen>,
    ) -> anyhow::Result<()> {
        for _ in 0..TRIES {
            let answer = self.send(peer).await?;
            let is_final = answer.is_final();
            seen.push(answer);
            if is_final {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
        anyhow::bail!("after {TRIES} retries the client still had no result: {seen:?}")
    }
}

/// What the client has seen, in a few words.
#[must_use]
pub fn summary(seen: &[Seen]) -> String {
    let mut summary = String::new();
    let mut rest = seen;
    while let [first, ..] = rest {
        let equal = rest.iter().take_while(|other| *other == first).count();
        rest = &rest[equal..];
        let word = match first {
            Seen::CutOff => "cut off",
            Seen::Error => "error",
            Seen::Refusal(kind, _) => kind.strip_prefix("idempotency_").unwrap_or(kind),
            Seen::Result(_) => "result",
            Seen::Replay(_) => "replay",
        };
        let comma = if summary.is_empty() { "" } else { ", " };
        let times = if equal > 1 {
            format!("{equal} × ")
        } else {
            String::new()
        };
        // Writing to a string cannot fail.
        let _ = write!(summary, "{comma}{times}{word}");
    }
    summary
}
