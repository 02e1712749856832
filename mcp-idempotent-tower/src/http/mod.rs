//! Over HTTP: the key in the place that SEP-3182 chose, `params.idempotencyKey`.
//!
//! rmcp drops members of `params` that it does not know before a handler sees them, so this layer
//! puts the key into `params._meta` in front of
//! [`StreamableHttpService`](https://docs.rs/rmcp/latest/rmcp/transport/streamable_http_server/).
//!
//! 1. Requests other than `POST` pass, their bodies unread.
//! 2. A body is read whole, up to the limit; a larger one is answered with `413`. The default is
//!    rmcp's own limit, 4 MiB. If you change one, change the other.
//! 3. A body without the bytes `idempotencyKey`, and without `\u`, passes unparsed and unchanged.
//!    So does one that is not a `tools/call`, has no such member in `params`, or does not parse.
//! 4. Otherwise `_meta["idempotency-key"]` is added and `Content-Length` adjusted. No other byte
//!    changes. Method, tool name and arguments stay the same, so the headers `Mcp-Method`,
//!    `Mcp-Name` and `Mcp-Param-*` of the 2026-07-28 transport still fit.
//! 5. A call with a different key in `_meta` is refused like any call with two keys
//!    (`idempotency_key_invalid`). A key that is not a string is refused too.
//! 6. In the answers to `initialize` and `server/discover`, this place is added to those that the
//!    server's idempotency layer lists (`keys`). With
//!    [`with_capability`](LiftKeyLayer::with_capability) they also get
//!    `capabilities.tools.idempotency: {}`. Other responses pass unchanged.
//! 7. With [`with_header`](LiftKeyLayer::with_header) the HTTP header `Idempotency-Key` of a tool
//!    call is a key as well, under the same rules.
//!
//! # Caveats
//!
//! - Compressed bodies are not read: put decompression in front.
//!
//! # Example
//!
//! ```
//! use mcp_idempotent_tower::http::LiftKeyLayer;
//! use tower::{Layer, service_fn};
//!
//! # #[derive(Clone)] struct Streamable;
//! # let streamable_http_service = Streamable;
//! let service = LiftKeyLayer::new().layer(streamable_http_service);
//! # drop(service);
//! // axum::Router::new().nest_service("/mcp", service)
//! ```

mod body;
mod edit;

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header::CONTENT_LENGTH};
use http_body::Body;
use serde_json::value::RawValue;
use tower::{Layer, Service};

pub use self::body::{LiftResponseBody, LiftedBody};
use self::{
    body::{Unread, read},
    edit::Advertised,
};
use crate::{lift::lift, wire};

/// A layer for HTTP services that puts `params.idempotencyKey` where the rest of this crate looks
/// for it. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct LiftKeyLayer {
    limit: usize,
    advertised: Advertised,
}

impl LiftKeyLayer {
    /// rmcp's own limit on the body of a request: 4 MiB.
    pub const DEFAULT_LIMIT: usize = 4 * 1024 * 1024;

    /// With the default limit.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limit: Self::DEFAULT_LIMIT,
            advertised: Advertised {
                sep_capability: false,
                header: false,
            },
        }
    }

    /// The largest body that is read, in bytes. Set it to the `max_request_body_bytes` of
    /// `StreamableHttpServerConfig`.
    #[must_use]
    pub const fn with_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Says `capabilities.tools.idempotency` in the answers to `initialize` and `server/discover`,
    /// for clients that look for it where SEP-3182 put it.
    #[must_use]
    pub const fn with_capability(mut self) -> Self {
        self.advertised.sep_capability = true;
        self
    }

    /// Uses the HTTP header `Idempotency-Key` of a tool call as its key, unchanged, quotes
    /// included. For clients that can set nothing but headers. It is off by default because a
    /// gateway may set this header for purposes of its own, and because many clients send the same
    /// headers with every request: then all calls have one key, and all but the first are refused
    /// as conflicts.
    ///
    /// A header that contradicts a key elsewhere in the call is refused
    /// (`idempotency_key_invalid`).
    #[must_use]
    pub const fn with_header(mut self) -> Self {
        self.advertised.header = true;
        self
    }
}

impl Default for LiftKeyLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for LiftKeyLayer {
    type Service = LiftKey<S>;

    fn layer(&self, inner: S) -> LiftKey<S> {
        LiftKey {
            inner,
            layer: *self,
        }
    }
}

/// The service that [`LiftKeyLayer`] makes.
#[derive(Debug, Clone)]
pub struct LiftKey<S> {
    inner: S,
    layer: LiftKeyLayer,
}

impl<S, B, R> Service<Request<B>> for LiftKey<S>
where
    S: Service<Request<LiftedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: std::fmt::Display + Send,
    R: Body<Data = Bytes> + Send,
    R::Error: Send,
{
    type Response = Response<LiftResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Use the service that is ready; its clone is not.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let layer = self.layer;
        Box::pin(async move {
            let mut asks_for_capabilities = false;
            let request = if request.method() == Method::POST {
                match lifted(request, layer).await {
                    Ok((request, body)) => {
                        asks_for_capabilities = edit::asks_for_capabilities(&body);
                        request
                    }
                    Err(response) => return Ok(*response),
                }
            } else {
                request.map(LiftedBody::as_it_came)
            };
            let response = inner.call(request).await?;
            if !asks_for_capabilities {
                return Ok(response.map(LiftResponseBody::as_it_came));
            }
            Ok(with_places(response, layer.advertised).await)
        })
    }
}

async fn lifted<B, R>(
    request: Request<B>,
    layer: LiftKeyLayer,
) -> Result<(Request<LiftedBody<B>>, Bytes), Box<Response<LiftResponseBody<R>>>>
where
    B: Body,
    B::Error: std::fmt::Display,
{
    let limit = layer.limit;
    let (mut parts, body) = request.into_parts();
    let keys = if layer.advertised.header {
        keys_in(&parts.headers)
    } else {
        Vec::new()
    };
    let body = match read(body, limit).await {
        Ok(body) => body,
        Err(Unread::TooLarge) => {
            return Err(refusal(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("Payload Too Large: request body exceeds {limit} bytes"),
            ));
        }
        Err(Unread::Failed(error)) => {
            return Err(refusal(
                StatusCode::BAD_REQUEST,
                format!("Failed to read request body: {error}"),
            ));
        }
    };
    let body = match lift(&body, &keys) {
        None => body,
        Some(edited) => {
            if parts.headers.contains_key(CONTENT_LENGTH) {
                parts
                    .headers
                    .insert(CONTENT_LENGTH, HeaderValue::from(edited.len()));
            }
            edited
        }
    };
    let request = Request::from_parts(parts, LiftedBody::read(body.clone()));
    Ok((request, body))
}

/// The values of the header, as JSON. One that is not text becomes `null`, which is not a key and
/// is refused.
fn keys_in(headers: &HeaderMap) -> Vec<Box<RawValue>> {
    let values = headers.get_all(wire::KEY_HEADER);
    let as_json = |value: &HeaderValue| {
        let text = value.to_str().ok();
        serde_json::value::to_raw_value(&text).ok()
    };
    values.iter().filter_map(as_json).collect()
}

/// Adds the places. These answers are complete, not open streams, so they can be read whole.
async fn with_places<R>(
    response: Response<R>,
    advertised: Advertised,
) -> Response<LiftResponseBody<R>>
where
    R: Body<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    let Ok(body) = read(body, LiftKeyLayer::DEFAULT_LIMIT).await else {
        tracing::error!("the server's answer to `initialize` or `server/discover` cannot be read");
        return *refusal(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Unreadable answer".into(),
        );
    };
    let body = edit::advertise(&body, advertised).unwrap_or(body);
    if parts.headers.contains_key(CONTENT_LENGTH) {
        parts
            .headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    Response::from_parts(parts, LiftResponseBody::read(body))
}

fn refusal<R>(status: StatusCode, text: String) -> Box<Response<LiftResponseBody<R>>> {
    let mut response = Response::new(LiftResponseBody::read(Bytes::from(text)));
    *response.status_mut() = status;
    Box::new(response)
}
