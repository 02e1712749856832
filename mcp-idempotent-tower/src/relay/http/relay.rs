//! The relay in front of a server that is reached over HTTP.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use http::{HeaderValue, Method, Request, Response, StatusCode, request, response, uri::Authority};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, LengthLimitError, Limited, StreamBody};
use mcp_idempotent_core::Store;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tower::{BoxError, Service, ServiceExt as _};

use super::{
    event::{Event, Events},
    exchange::{Exchange, Live, head_for_tools},
    wire::{self, Server, WireBody, WireError, boxed, full, is_of_type, plain},
};
use crate::relay::{
    answer::{self, Outgoing},
    call::RelayedCall,
    message::{Id, Message, messages, param},
    pending::{PendingCall, PendingCalls},
    relay::{Forward, Relay},
    rule::{Believed, Hints},
    tools::{Page, Tools},
};

/// How long a list of tools is believed, because changes are reported on other streams.
const LISTED: Duration = Duration::from_secs(60);

/// For how many callers the tools are remembered.
const MOST_LISTS: usize = 1024;

/// A [`Relay`] in front of a server that is reached over Streamable HTTP: a service for HTTP
/// requests. See the [module](super). Cheap to clone; clones share everything.
pub struct HttpRelay<S> {
    relay: Relay<S>,
    server: Server,
    authority: Authority,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Calls in sessions, which their clients may cancel.
    pending: PendingCalls<(String, Id)>,
    /// What the server lists, for each session or caller.
    tools: Mutex<HashMap<String, (Instant, Arc<Tools>)>>,
}

/// The headers that say on whose behalf the server is asked.
const ASKING: [&str; 2] = ["mcp-session-id", "authorization"];

impl<S: Store> HttpRelay<S> {
    /// A relay in front of the server that `server` sends requests to. They have the method, path
    /// and headers of the client's requests, and this authority (host and port).
    pub fn new<U, B>(relay: Relay<S>, authority: Authority, server: U) -> Self
    where
        U: Service<Request<WireBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
        U::Error: Into<BoxError>,
        U::Future: Send,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let server: Server = Arc::new(move |request| {
            let response = server.clone().oneshot(request);
            Box::pin(async move {
                let response = response.await.map_err(WireError::new)?;
                Ok(response.map(boxed))
            })
        });
        Self {
            relay,
            server,
            authority,
            shared: Arc::default(),
        }
    }

    async fn respond<B>(self, request: Request<B>) -> Response<WireBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return self.pass(&head, boxed(body)).await;
        }
        let limit = self.relay.settings().max_message_bytes;
        let line = match Limited::new(body, limit).collect().await {
            Ok(line) => line.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return plain(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "The message is too long for the proxy.",
                );
            }
            Err(_) => return plain(StatusCode::BAD_REQUEST, "The request broke off."),
        };
        self.post(head, line).await
    }

    async fn post(self, head: request::Parts, line: Bytes) -> Response<WireBody> {
        let in_batch = messages(&line);
        if in_batch.len() > 1 || in_batch.first() != Some(&line) {
            return self.batch(&head, line, &in_batch).await;
        }
        let text = String::from_utf8_lossy(&line);
        let Some(message) = Message::of(&text) else {
            return self.pass(&head, full(line)).await;
        };
        if let Some(id) = param(&message, "notifications/cancelled", "requestId").and_then(Id::of)
            && let Some(pending) =
                session_of(&head).and_then(|it| self.shared.pending.take(&(it, id)))
        {
            if !self.relay.settings().forward_cancel {
                return plain(StatusCode::ACCEPTED, "");
            }
            pending.cancel();
            return self.pass(&head, full(line)).await;
        }
        let mut caller = self.relay.caller();
        caller.head = Some(Arc::new(head.clone()));
        match RelayedCall::of(&line, &message, self.relay.key_argument(), caller) {
            Ok(Some(call)) => {
                drop(message);
                self.call(head, call).await
            }
            Ok(None) => self.pass(&head, full(line)).await,
            Err(call) => wire::json(&answer::invalid(&call.id, call.why)),
        }
    }

    /// Only one old revision has batches. Those without calls pass.
    async fn batch(
        &self,
        head: &request::Parts,
        line: Bytes,
        batch: &[Bytes],
    ) -> Response<WireBody> {
        let is_call = |line: &Bytes| {
            let text = String::from_utf8_lossy(line);
            let method = Message::of(&text).and_then(|message| message.method());
            method.is_some_and(|method| method == "tools/call")
        };
        if batch.iter().any(is_call) {
            let text = "The proxy cannot protect calls in a batch. Send each of them on its own.";
            return plain(StatusCode::BAD_REQUEST, text);
        }
        self.pass(head, full(line)).await
    }

    /// Passes a request on, and its response back.
    async fn pass(&self, head: &request::Parts, body: WireBody) -> Response<WireBody> {
        let request = wire::request(head, &self.authority, body);
        match (self.server)(request).await {
            Ok(mut response) => {
                wire::strip(response.headers_mut());
                response
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the request to the server failed"
                );
                plain(StatusCode::BAD_GATEWAY, "The server could not be reached.")
            }
        }
    }

    async fn call(self, head: request::Parts, mut call: RelayedCall) -> Response<WireBody> {
        let hints = self.hints(&head, &call).await;
        let Some(policy) = self.relay.policy(&call, hints).cloned() else {
            return self.pass(&head, full(call.line().clone())).await;
        };
        let pending = Arc::new(PendingCall::default());
        call.pending = Arc::clone(&pending);
        let key = session_of(&head).map(|session| (session, call.id.clone()));
        if let Some(key) = &key {
            self.shared.pending.insert(key.clone(), &pending);
        }
        let exchange = Exchange {
            server: Arc::clone(&self.server),
            authority: self.authority.clone(),
            head,
            on_doubt: policy.on_doubt,
            believed: Believed::of(hints, self.relay.settings()),
            limit: self.relay.settings().max_message_bytes,
        };
        let (live, mut seen) = oneshot::channel();
        let cancelled = Arc::clone(&pending);
        let forward: Forward = Box::new(move |call| {
            Box::pin(async move {
                let on_doubt = exchange.on_doubt;
                tokio::select! {
                    answered = exchange.run(call, live) => answered,
                    () = cancelled.cancelled() => answer::Answered::lost(on_doubt),
                }
            })
        });
        // In a task: a client that disconnects does not end its call.
        let mut answer = tokio::spawn(async move {
            let answer = self.relay.answer(call, &policy, hints, forward).await;
            if let Some(key) = &key {
                self.shared.pending.end(key, &pending);
            }
            answer
        });
        let live = tokio::select! {
            biased;
            Ok(live) = &mut seen => live,
            answer = &mut answer => return match (answer, seen.try_recv()) {
                (Ok(answer), Ok(live)) => response(live, &answer.bytes),
                (Ok(answer), Err(_)) => wire::json(&answer.bytes),
                (Err(_), _) => failed(),
            },
        };
        match live {
            Live::Events(head, events) => streamed(*head, events, answer),
            live => answer
                .await
                .map_or_else(|_| failed(), |answer| response(live, &answer.bytes)),
        }
    }

    /// What the server tells this caller about a call's tool.
    async fn hints(&self, head: &request::Parts, call: &RelayedCall) -> Hints {
        let asking = ASKING.map(|name| {
            let value = head.headers.get(name).map(HeaderValue::as_bytes);
            String::from_utf8_lossy(value.unwrap_or_default())
        });
        let place = head.uri.path_and_query().map_or("", |place| place.as_str());
        let tools = self
            .shared
            .tools_of(format!("{place}\n{}", asking.join("\n")));
        let head = head_for_tools(head);
        let ask = |params| self.list(&head, params);
        tools.hints(&call.tool, || call.protocol_meta(), ask).await
    }

    /// Asks the server for a page of its tools.
    async fn list(&self, head: &request::Parts, params: Value) -> Page {
        let id = json!("tools of the proxy");
        let asked = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": params });
        let request = wire::request(head, &self.authority, full(asked.to_string().into()));
        let limit = self.relay.settings().max_message_bytes;
        let answered = async {
            let response = (self.server)(request).await.ok()?;
            let (head, body) = response.into_parts();
            if !is_of_type(&head.headers, "text/event-stream") {
                let body = Limited::new(body, limit).collect().await.ok()?;
                return Some(body.to_bytes());
            }
            let mut events = Events::new(body, limit);
            loop {
                let event = events.next().await.ok()??;
                if event.data.contains("\"tools of the proxy\"") {
                    return Some(event.data.into());
                }
            }
        };
        answered.await.map_or(Page::Silence, Page::Response)
    }
}

impl Shared {
    fn tools_of(&self, asking: String) -> Arc<Tools> {
        let mut lists = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if lists.len() >= MOST_LISTS {
            lists.retain(|_, (asked, _)| now.duration_since(*asked) < LISTED);
        }
        let (asked, tools) = lists.entry(asking).or_insert_with(|| (now, Arc::default()));
        if now.duration_since(*asked) >= LISTED {
            (*asked, *tools) = (now, Arc::default());
        }
        Arc::clone(tools)
    }
}

fn session_of(head: &request::Parts) -> Option<String> {
    let session = head.headers.get("mcp-session-id")?;
    Some(String::from_utf8_lossy(session.as_bytes()).into_owned())
}

fn failed() -> Response<WireBody> {
    plain(StatusCode::INTERNAL_SERVER_ERROR, "The proxy failed.")
}

/// The response to the caller whose call was sent.
fn response(live: Live, answer: &[u8]) -> Response<WireBody> {
    match live {
        Live::Message(head) => {
            let body = Bytes::copy_from_slice(answer.trim_ascii_end());
            Response::from_parts(*head, full(body))
        }
        Live::Other(response) => response.map(full),
        Live::Events(..) => wire::json(answer),
    }
}

/// The server's events as they come. The last one, with the answer, comes once it is recorded.
fn streamed(
    head: response::Parts,
    events: mpsc::Receiver<(Event, bool)>,
    answer: JoinHandle<Outgoing>,
) -> Response<WireBody> {
    let state = (events, Some(answer));
    let text = stream::unfold(state, |(mut events, answer)| async move {
        let text = match events.recv().await {
            Some((event, false)) => event.text,
            last => {
                let answer = answer?.await.ok()?.bytes;
                let text = last_event(last.map(|(event, _)| event), answer.trim_ascii_end());
                return Some((text, (events, None)));
            }
        };
        Some((text, (events, answer)))
    });
    let frames = text.map(|text| Ok::<_, Infallible>(Frame::data(text)));
    Response::from_parts(head, boxed(StreamBody::new(frames)))
}

/// The event with the answer: the server's own, if it says the same.
fn last_event(event: Option<Event>, answer: &[u8]) -> Bytes {
    match event {
        Some(event) if event.data.as_bytes() == answer => event.text,
        Some(event) => event.with_data(&String::from_utf8_lossy(answer)),
        None => format!("data: {}\n\n", String::from_utf8_lossy(answer)).into(),
    }
}

impl<S: Store, B> Service<Request<B>> for HttpRelay<S>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<WireBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move { Ok(this.respond(request).await) })
    }
}

impl<S> Clone for HttpRelay<S> {
    fn clone(&self) -> Self {
        Self {
            relay: self.relay.clone(),
            server: Arc::clone(&self.server),
            authority: self.authority.clone(),
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> fmt::Debug for HttpRelay<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRelay")
            .field("relay", &self.relay)
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}
