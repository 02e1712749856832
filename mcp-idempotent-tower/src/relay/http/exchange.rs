//! One protected call over HTTP: the request to the server, and its answer as it comes.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Response, StatusCode, header, request, response, uri::Authority,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use mcp_idempotent_core::OnDoubt;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    event::{Event, Events, NoEvent},
    wire::{Server, WireBody, full, is_of_type, request, strip},
};
use crate::{
    call::key::KeyMaker,
    relay::{
        answer::Answered,
        call::RelayedCall,
        message::{Id, Message},
        rule::Believed,
    },
};

/// How often a stream that broke off before the answer is resumed.
const RESUMPTIONS: u32 = 5;

/// How long to wait before that, unless the server says something else.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long a client may take to read an event. Then it counts as gone.
const READING: Duration = Duration::from_secs(30);

/// What the caller whose call was sent gets while it runs.
pub(super) enum Live {
    /// The answer is a message. The head is the server's.
    Message(Box<response::Parts>),
    /// The answer is an event: the last one of those that come here, which says so.
    Events(Box<response::Parts>, mpsc::Receiver<(Event, bool)>),
    /// The server answered something other than JSON-RPC.
    Other(Box<Response<Bytes>>),
}

/// A call on its way.
pub(super) struct Exchange {
    pub(super) server: Server,
    pub(super) authority: Authority,
    pub(super) head: request::Parts,
    pub(super) on_doubt: OnDoubt,
    pub(super) believed: Believed,
    pub(super) limit: usize,
}

impl Exchange {
    /// Sends a call, and waits for its answer. Its caller gets to see what comes before it.
    pub(super) async fn run(mut self, call: RelayedCall, live: oneshot::Sender<Live>) -> Answered {
        // A compressed answer cannot be read.
        self.head.headers.remove(header::ACCEPT_ENCODING);
        let (id, key_maker, line) = (call.id.clone(), call.key_maker, call.line().clone());
        drop(call);
        let response = match self.send(full(line)).await {
            Ok(response) => response,
            Err(answered) => return answered,
        };
        let (mut head, body) = response.into_parts();
        strip(&mut head.headers);
        if head.status.is_success() && is_of_type(&head.headers, "text/event-stream") {
            let (events, seen) = mpsc::channel(16);
            drop(live.send(Live::Events(Box::new(head), seen)));
            return self.until_answered(body, events, &id, key_maker).await;
        }
        head.headers.remove(header::CONTENT_LENGTH);
        let body = match Limited::new(body, self.limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Answered::unreadable(),
            Err(_) => return Answered::lost(self.on_doubt),
        };
        if is_answer(&body, &id) {
            drop(live.send(Live::Message(Box::new(head))));
            return Answered::by_server(body, None, key_maker, self.believed);
        }
        let status = head.status;
        drop(live.send(Live::Other(Box::new(Response::from_parts(head, body)))));
        if is_proof_of_nothing(status) {
            Answered::not_sent()
        } else {
            Answered::lost(self.on_doubt)
        }
    }

    async fn send(&self, body: WireBody) -> Result<Response<WireBody>, Answered> {
        let request = request(&self.head, &self.authority, body);
        (self.server)(request).await.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the request to the server failed"
            );
            if error.is_of_connecting() {
                Answered::not_sent()
            } else {
                Answered::lost(self.on_doubt)
            }
        })
    }

    /// Passes events on until the answer. A stream that breaks off earlier is resumed.
    async fn until_answered(
        mut self,
        body: WireBody,
        to: mpsc::Sender<(Event, bool)>,
        id: &Id,
        key_maker: KeyMaker,
    ) -> Answered {
        let mut to = Some(to);
        let mut events = Events::new(body, self.limit);
        let (mut last, mut pause) = (None, PAUSE);
        let mut resumptions = RESUMPTIONS;
        loop {
            loop {
                let event = match events.next().await {
                    Ok(Some(event)) => event,
                    Err(NoEvent::TooLong) => return Answered::unreadable(),
                    Err(NoEvent::Lost(error)) => {
                        tracing::debug!(%error, "a stream of the server's broke off");
                        break;
                    }
                    Ok(None) => break,
                };
                resumptions = RESUMPTIONS;
                last = event.id.clone().or(last);
                pause = event
                    .retry
                    .map_or(pause, Duration::from_millis)
                    .min(LONGEST_PAUSE);
                let answer = is_answer(event.data.as_bytes(), id).then(|| event.data.clone());
                if let Some(open) = &to
                    && !matches!(
                        timeout(READING, open.send((event, answer.is_some()))).await,
                        Ok(Ok(()))
                    )
                {
                    // A caller that has gone needs no events; the record needs the answer.
                    to = None;
                }
                if let Some(answer) = answer {
                    return Answered::by_server(answer.into(), None, key_maker, self.believed);
                }
            }
            let Some(Ok(last)) = last.as_deref().map(HeaderValue::from_str) else {
                return Answered::lost(self.on_doubt);
            };
            if resumptions == 0 {
                return Answered::lost(self.on_doubt);
            }
            resumptions -= 1;
            sleep(pause).await;
            self.head.method = Method::GET;
            self.head.headers.remove(header::CONTENT_TYPE);
            self.head.headers.remove(header::CONTENT_LENGTH);
            self.head.headers.insert("last-event-id", last);
            if let Ok(response) = self.send(full(Bytes::new())).await
                && response.status().is_success()
            {
                events = Events::new(response.into_body(), self.limit);
            }
        }
    }
}

/// Whether a message is the response to the request with this id.
pub(super) fn is_answer(message: &[u8], id: &Id) -> bool {
    let read = std::str::from_utf8(message).ok().and_then(Message::of);
    read.is_some_and(|message| {
        message.method().is_none() && message.id().and_then(Id::of).as_ref() == Some(id)
    })
}

/// Whether this status proves that the server has not run the call.
fn is_proof_of_nothing(status: StatusCode) -> bool {
    status.is_client_error()
        && status != StatusCode::REQUEST_TIMEOUT
        && status != StatusCode::CONFLICT
}

/// The head of the relay's own request for the tools, on behalf of a call.
pub(super) fn head_for_tools(head: &request::Parts) -> request::Parts {
    let mut head = head.clone();
    let is_of_call = |name: &str| name == "mcp-name" || name.starts_with("mcp-param-");
    let mut headers = HeaderMap::new();
    for (name, value) in &head.headers {
        if !is_of_call(name.as_str()) {
            headers.append(name.clone(), value.clone());
        }
    }
    headers.remove(header::ACCEPT_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    if let Some(method) = headers.get_mut("mcp-method") {
        *method = HeaderValue::from_static("tools/list");
    }
    head.headers = headers;
    head
}
