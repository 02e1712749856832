//! A server over Streamable HTTP.

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use mcp_idempotent_tower::testing::{Caller, Door, Wire};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::upstream::{Upstream, UpstreamClient};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Where it is, and as whom it is called.
pub(super) struct Http {
    url: Uri,
    client: UpstreamClient,
    headers: HeaderMap,
    /// Those of another caller.
    others: Option<HeaderMap>,
}

impl Http {
    /// # Errors
    ///
    /// It is not the URL of a server, or there is no TLS.
    pub(super) fn new(
        url: &Uri,
        headers: &[(HeaderName, HeaderValue)],
        others: &[(HeaderName, HeaderValue)],
    ) -> Result<Self, Box<dyn Error>> {
        let (scheme, authority) = url
            .scheme()
            .zip(url.authority())
            .ok_or("--url is not a URL")?;
        let upstream: Upstream = format!("{scheme}://{authority}").parse()?;
        let mut given = HeaderMap::new();
        for (name, value) in headers {
            given.append(name, value.clone());
        }
        let mut other = given.clone();
        for (name, value) in others {
            other.insert(name, value.clone());
        }
        Ok(Self {
            url: url.clone(),
            client: upstream.client()?,
            headers: given,
            others: (!others.is_empty()).then_some(other),
        })
    }
}

impl Door for Http {
    fn open(&self, caller: Caller) -> BoxFuture<'_, Result<Arc<dyn Wire>, String>> {
        let mut headers = match (caller, &self.others) {
            (Caller::Other, Some(others)) => others.clone(),
            _ => self.headers.clone(),
        };
        let accepted = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, accepted);
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let wire = Connection {
            url: self.url.clone(),
            client: self.client.clone(),
            headers: Arc::new(Mutex::new(headers)),
        };
        Box::pin(async move { Ok(Arc::new(wire) as _) })
    }

    fn has_another_caller(&self) -> bool {
        self.others.is_some()
    }
}

/// A session. Each request has a connection while it waits for its answer.
struct Connection {
    url: Uri,
    client: UpstreamClient,
    headers: Arc<Mutex<HeaderMap>>,
}

impl Wire for Connection {
    fn send(&self, message: Value) -> BoxFuture<'static, Result<Option<Value>, String>> {
        let id = message.get("id").cloned();
        let body = Full::new(Bytes::from(message.to_string()));
        let mut request = Request::new(body.map_err(|never| match never {}).boxed_unsync());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = lock(&self.headers).clone();
        let (client, headers) = (self.client.clone(), Arc::clone(&self.headers));
        Box::pin(async move {
            let said = |error: hyper_util::client::legacy::Error| match error.source() {
                Some(cause) => format!("{error}: {cause}"),
                None => error.to_string(),
            };
            let response = client.oneshot(request).await.map_err(said)?;
            if let Some(session) = response.headers().get(SESSION) {
                lock(&headers).insert(SESSION, session.clone());
            }
            let status = response.status();
            let Some(id) = id else {
                return Ok(None);
            };
            let answer = answer(response.into_body(), &id).await?;
            let answer = answer.ok_or_else(|| format!("{status} without an answer"))?;
            if let Some(version) = answer["result"]["protocolVersion"].as_str()
                && let Ok(version) = HeaderValue::from_str(version)
            {
                lock(&headers).insert(VERSION, version);
            }
            Ok(Some(answer))
        })
    }
}

/// The answer to a request, in a stream of events or alone. An error for nobody is one for everybody.
async fn answer(mut body: Incoming, id: &Value) -> Result<Option<Value>, String> {
    let mut read = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        if let Ok(data) = frame.into_data() {
            read.extend_from_slice(&data);
        }
        // Whole lines, each once.
        while let Some(end) = read[seen..].iter().position(|byte| *byte == b'\n') {
            let line = &read[seen..seen + end];
            if let Some(answer) = line.strip_prefix(b"data:").and_then(|it| of(it, id)) {
                return Ok(Some(answer));
            }
            seen += end + 1;
        }
    }
    let last = read.get(seen..).unwrap_or_default();
    let last = last.strip_prefix(b"data:").unwrap_or(last);
    Ok(of(last, id).or_else(|| of(&read, id)))
}

fn of(text: &[u8], id: &Value) -> Option<Value> {
    let message: Value = serde_json::from_slice(text).ok()?;
    let is_for_all = message["id"].is_null() && message.get("error").is_some();
    let is_answer = message.get("method").is_none() && (message["id"] == *id || is_for_all);
    is_answer.then_some(message)
}

fn lock(headers: &Mutex<HeaderMap>) -> std::sync::MutexGuard<'_, HeaderMap> {
    headers.lock().unwrap_or_else(PoisonError::into_inner)
}
