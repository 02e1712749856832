//! The tool calls of one client, between it and the server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind, Refusal, Store};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    answer::{self, Outgoing},
    call::RelayedCall,
    message::{Id, Message, param},
    outlet::Outlet,
    pending::{PendingCall, PendingCalls},
    progress::Progress,
    relay::{Forward, Relay},
    rule::Believed,
    scan::Scan,
    settings::RelaySettings,
    tools::{Page, Tools},
    upstream::{Response, Upstream},
};
use crate::{
    StillRunning,
    raw::{edited, range},
};

/// How much of the memory for calls a call takes, besides its line.
const CALL: usize = 4096;

/// What a client's message means to the relay.
pub(super) enum Taken {
    /// Something that passes.
    Not,
    Call(Box<RelayedCall>),
    /// The client no longer waits for this call. With the message that says so.
    Cancelled(Arc<PendingCall>, Bytes),
    /// A call that gets this answer.
    Refused(Bytes),
}

pub(super) struct Calls<S> {
    relay: Relay<S>,
    client: Outlet,
    server: Arc<Upstream>,
    tools: Tools,
    progress: Arc<Progress>,
    pending: PendingCalls<Id>,
    /// For the calls that are not answered yet.
    memory: Arc<Semaphore>,
}

impl<S: Store> Calls<S> {
    /// Calls that are not answered yet may take this much memory, in bytes.
    pub(super) fn new(
        relay: Relay<S>,
        client: Outlet,
        server: Arc<Upstream>,
        memory: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            relay,
            client,
            server,
            tools: Tools::default(),
            progress: Arc::default(),
            pending: PendingCalls::default(),
            memory: Arc::new(Semaphore::new(memory.min(Semaphore::MAX_PERMITS))),
        })
    }

    pub(super) const fn client(&self) -> &Outlet {
        &self.client
    }

    pub(super) fn server(&self) -> &Arc<Upstream> {
        &self.server
    }

    pub(super) fn settings(&self) -> &RelaySettings {
        self.relay.settings()
    }

    pub(super) async fn shutdown(&self, within: Duration) -> Result<(), StillRunning> {
        self.relay.idempotency.shutdown(within).await
    }

    /// Passes a line to the server. If the server has gone, nobody is told: the client will notice.
    pub(super) async fn pass(&self, line: &[u8]) {
        let _ = self.server.out().send(line).await;
    }

    /// Passes a line to the client.
    pub(super) async fn tell(&self, line: &[u8]) {
        let _ = self.client.send(line).await;
    }

    /// Takes a tool call, or the cancellation of one.
    pub(super) fn take(&self, line: &Bytes) -> Taken {
        let text = String::from_utf8_lossy(line);
        let Some(message) = Message::of(&text) else {
            return Taken::Not;
        };
        if let Some(id) = param(&message, CANCELLED, "requestId").and_then(Id::of) {
            let pending = self.pending.take(&id);
            return pending.map_or(Taken::Not, |pending| {
                Taken::Cancelled(pending, line.clone())
            });
        }
        let (argument, caller) = (self.relay.key_argument(), self.relay.caller());
        let mut call = match RelayedCall::of(line, &message, argument, caller) {
            Ok(Some(call)) => call,
            Ok(None) => return Taken::Not,
            Err(call) => return Taken::Refused(answer::invalid(&call.id, call.why)),
        };
        let Some(held) = self.hold(line.len()) else {
            let reader = self.relay.reader(&call, None);
            return Taken::Refused(answer::refused(&busy(), &call.id, &reader));
        };
        call.held = Some(held);
        let listener = call.progress_token.take();
        let listener = listener.map(|token| self.progress.listener(token));
        call.pending = Arc::new(PendingCall::new(listener));
        self.pending.insert(call.id.clone(), &call.pending);
        Taken::Call(Box::new(call))
    }

    fn hold(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok()?;
        Arc::clone(&self.memory).try_acquire_many_owned(bytes).ok()
    }

    /// Answers a call, unless its client cancels it meanwhile.
    pub(super) async fn answer(self: Arc<Self>, call: Box<RelayedCall>) {
        let (id, pending) = (call.id.clone(), Arc::clone(&call.pending));
        let Some(_held) = self.hold(CALL) else {
            self.pending.end(&id, &pending);
            let reader = self.relay.reader(&call, None);
            self.tell(&answer::refused(&busy(), &id, &reader)).await;
            return;
        };
        let answer = tokio::select! {
            biased;
            () = pending.cancelled() => None,
            answer = self.answer_to(*call) => answer,
        };
        self.pending.end(&id, &pending);
        drop(pending);
        if let Some(answer) = answer {
            self.tell(&answer.bytes).await;
        }
    }

    /// The answer to a call, or `None` if the server gives it itself.
    async fn answer_to(&self, call: RelayedCall) -> Option<Outgoing> {
        let meta = || call.protocol_meta();
        let hints = self
            .tools
            .hints(&call.tool, meta, |params| self.list(params));
        let hints = hints.await;
        let Some(policy) = self.relay.policy(&call, hints) else {
            self.pending.end(&call.id, &call.pending);
            self.pass(call.line()).await;
            return None;
        };
        let server = Arc::clone(&self.server);
        let on_doubt = policy.on_doubt;
        let believed = Believed::of(hints, self.settings());
        let forward: Forward =
            Box::new(move |call| Box::pin(server.forward(call, on_doubt, believed)));
        Some(self.relay.answer(call, policy, hints, forward).await)
    }

    /// Asks the server for a page of its tools.
    async fn list(&self, params: Value) -> Page {
        let Ok(open) = self.server.open() else {
            return Page::Silence;
        };
        let request = json!({
            "jsonrpc": "2.0",
            "id": open.id,
            "method": "tools/list",
            "params": params,
        });
        // In a task of its own: if the call is cancelled or the time is over, a line that has been begun must
        // still be written whole.
        let out = self.server.out().clone();
        let sending =
            tokio::spawn(async move { out.send(format!("{request}\n").as_bytes()).await });
        if !matches!(sending.await, Ok(Ok(()))) {
            return Page::Silence;
        }
        match open.response().await {
            Some(Response::Message(response, _)) => Page::Response(response),
            Some(Response::Unreadable) | None => Page::Silence,
        }
    }

    /// The client no longer waits for a call.
    pub(super) async fn cancel(&self, pending: &PendingCall, line: &Bytes) {
        pending.cancel();
        let Some(sent_as) = pending.sent_as().filter(|_| self.settings().forward_cancel) else {
            return;
        };
        // No answer from the server now proves that nothing happened.
        self.server.give_up(sent_as);
        let text = String::from_utf8_lossy(line);
        let read = Message::of(&text);
        let id = read.and_then(|message| param(&message, CANCELLED, "requestId"));
        if let Some(id) = id {
            let at = range(text.as_bytes(), id);
            let sent_as = sent_as.to_string();
            self.pass(&edited(text.as_bytes(), &mut [(at, &sent_as)]))
                .await;
        }
    }

    /// Takes what the server says about the relay's own requests. Returns whether it was that.
    pub(super) async fn hear(&self, line: &Bytes) -> bool {
        let read = std::str::from_utf8(line).ok().and_then(Message::of);
        let Some(message) = read else {
            // No JSON, though it may look like an answer: with a NaN in it, or in another encoding.
            let mut scan = Scan::default();
            scan.read(line);
            let ours = scan.id().filter(|id| self.server.is_ours(*id));
            ours.inspect(|id| self.server.answered_unreadably(*id));
            return ours.is_some();
        };
        let Some(method) = message.method() else {
            let id = message.id().and_then(Id::of).and_then(|id| id.number());
            let ours = id.filter(|id| self.server.is_ours(*id));
            if let Some(id) = ours {
                self.server.answered(id, line.clone()).await;
            }
            return ours.is_some();
        };
        match &*method {
            "notifications/tools/list_changed" => self.tools.changed(),
            PROGRESS => {
                let token = param(&message, PROGRESS, "progressToken");
                let told = token.and_then(|token| self.progress.heard(line, token));
                for line in told.iter().flatten() {
                    self.tell(line).await;
                }
                return told.is_some();
            }
            _ => {}
        }
        false
    }
}

const CANCELLED: &str = "notifications/cancelled";
const PROGRESS: &str = "notifications/progress";

/// Too many calls are still waiting for an answer. This says nothing about an earlier call with the same key.
fn busy() -> Refusal {
    Refusal::new(
        ErrorKind::TooManyWaiting,
        CommitOutcome::Unknown,
        Action::Wait,
        "Too many calls are still waiting for an answer, so this one was not executed. Wait, then send it again, \
         exactly as it is.",
    )
    .with_retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_busy_proxy_is_on_the_page_about_the_wire() {
        let busy = busy();
        let row = format!(
            "| `{}` | -32602 | `{}` | `{}` | {} |",
            busy.kind().as_str(),
            busy.outcome().as_str(),
            busy.action().as_str(),
            busy.retry_after().unwrap_or_default().as_millis()
        );
        let page = include_str!("../../../docs/wire.md");
        assert!(page.contains(&row), "{row}");
    }
}
