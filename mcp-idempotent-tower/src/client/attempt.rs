//! One attempt: connect, send, wait, and cancel when nobody waits any more.

use std::time::Duration;

use rmcp::{
    RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest,
        MetaObject, ServerResult,
    },
    service::{Peer, PeerRequestOptions, RequestHandle, ServiceError},
};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    connect::{Attempt, Connect, Connection as _},
    failure::Failure,
};

/// How long sending a cancellation may take: it may be the transport that is stuck.
const CANCEL_WITHIN: Duration = Duration::from_secs(1);

/// The longest time limit; a longer one could overflow an [`Instant`].
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub(super) async fn run(
    connect: &mut impl Connect,
    attempt: Attempt,
    params: CallToolRequestParams,
    limit: Duration,
) -> Result<CallToolResponse, Failure> {
    let deadline = Instant::now() + limit.min(LONGEST);
    let connection = match timeout_at(deadline, connect.connect(attempt)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return Err(Failure::NotRun(error.into())),
        Err(elapsed) => return Err(Failure::NotRun(elapsed.into())),
    };
    let pending = send(connection.peer(), params, deadline).await?;
    let response = pending.response(deadline, limit).await?;
    if let CallToolResponse::Complete(result) = &response
        && let Some(refused) = Failure::in_result(result)
    {
        return Err(refused);
    }
    Ok(response)
}

/// Hands the call to the connection's task. A call that fails here was never handed over.
async fn send(
    peer: &Peer<RoleClient>,
    params: CallToolRequestParams,
    deadline: Instant,
) -> Result<Pending, Failure> {
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options();
    match timeout_at(deadline, peer.send_cancellable_request(request, options)).await {
        Ok(Ok(handle)) => Ok(Pending(Some(handle))),
        Ok(Err(error)) => Err(Failure::NotRun(error.into())),
        Err(elapsed) => Err(Failure::NotRun(elapsed.into())),
    }
}

/// A call that was handed over. Dropping it tells the server that nobody waits any more.
struct Pending(Option<RequestHandle<RoleClient>>);

impl Pending {
    async fn response(
        mut self,
        deadline: Instant,
        limit: Duration,
    ) -> Result<CallToolResponse, Failure> {
        let Some(handle) = &mut self.0 else {
            unreachable!("taken below only")
        };
        let Ok(answer) = timeout_at(deadline, &mut handle.rx).await else {
            if let Some(handle) = self.0.take() {
                cancel(handle, "no answer in time").await;
            }
            return Err(Failure::of(ServiceError::Timeout { timeout: limit }));
        };
        self.0 = None;
        match answer {
            Ok(Ok(result)) => tool_response(result),
            Ok(Err(error)) => Err(Failure::of(error)),
            // The connection's task ended while it had the call.
            Err(_) => Err(Failure::of(ServiceError::TransportClosed)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(cancel(handle, "abandoned by the caller"));
        }
    }
}

async fn cancel(handle: RequestHandle<RoleClient>, reason: &str) {
    // The call counts as lost, whether or not the server hears of it.
    let sent = timeout(CANCEL_WITHIN, handle.cancel(Some(reason.to_owned()))).await;
    if !matches!(sent, Ok(Ok(()))) {
        tracing::debug!(reason, "a cancellation could not be sent");
    }
}

fn tool_response(result: ServerResult) -> Result<CallToolResponse, Failure> {
    Ok(match result {
        ServerResult::CallToolResult(result) => result.into(),
        ServerResult::InputRequiredResult(required) => required.into(),
        ServerResult::CreateTaskResult(task) => CallToolResponse::Task(task),
        other => match without_content(other) {
            Some(result) => result.into(),
            None => return Err(Failure::Unusable(ServiceError::UnexpectedResponse)),
        },
    })
}

/// A tool result without `content`, which rmcp reads as one of these other results.
fn without_content(result: ServerResult) -> Option<CallToolResult> {
    let mut tool_result = CallToolResult::default();
    match result {
        ServerResult::EmptyResult(_) => {}
        ServerResult::TaskAckResult(ack) => {
            tool_result.result_type = Some(ack.result_type);
            tool_result.meta = ack.meta;
        }
        ServerResult::CustomResult(custom) => {
            let Value::Object(mut fields) = custom.0 else {
                return None;
            };
            let Value::Object(meta) = fields.remove("_meta")? else {
                return None;
            };
            if !fields.is_empty() {
                return None;
            }
            tool_result.meta = Some(MetaObject(meta));
        }
        _ => return None,
    }
    Some(tool_result)
}
