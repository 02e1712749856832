//! Requests and responses, as they pass from one connection to another.

use std::{error::Error, fmt, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderName, Request, Response, StatusCode, Uri, header,
    request::Parts,
    uri::{Authority, Scheme},
};
use http_body::Body;
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use tower::BoxError;

/// A body of any kind.
pub type WireBody = UnsyncBoxBody<Bytes, WireError>;

/// A connection that broke off, or could not be made.
#[derive(Debug)]
pub struct WireError(BoxError);

impl WireError {
    pub(super) fn new(error: impl Into<BoxError>) -> Self {
        Self(error.into())
    }

    /// Whether there was no connection, so that nothing was sent.
    pub(super) fn is_of_connecting(&self) -> bool {
        let error = self.0.downcast_ref::<hyper_util::client::legacy::Error>();
        error.is_some_and(hyper_util::client::legacy::Error::is_connect)
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for WireError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A request's response.
pub(super) type Responding = BoxFuture<'static, Result<Response<WireBody>, WireError>>;

/// Sends requests to the server.
pub(super) type Server = Arc<dyn Fn(Request<WireBody>) -> Responding + Send + Sync>;

/// Headers that belong to one connection.
const OF_THE_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    header::HOST,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

pub(super) fn boxed<B>(body: B) -> WireBody
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(WireError::new).boxed_unsync()
}

pub(super) fn full(bytes: Bytes) -> WireBody {
    boxed(Full::new(bytes))
}

/// The request for the server.
pub(super) fn request(head: &Parts, server: &Authority, body: WireBody) -> Request<WireBody> {
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    let path = head.uri.path_and_query().cloned();
    let mut uri = Uri::builder()
        .scheme(Scheme::HTTP)
        .authority(server.clone());
    if let Some(path) = path {
        uri = uri.path_and_query(path);
    }
    *request.uri_mut() = uri.build().unwrap_or_default();
    *request.headers_mut() = head.headers.clone();
    strip(request.headers_mut());
    request
}

/// Removes what belongs to the connection on which a message came.
pub(super) fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in OF_THE_CONNECTION.iter().chain(&named) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
}

/// A response that is one JSON-RPC message.
pub(super) fn json(message: &[u8]) -> Response<WireBody> {
    let mut response = Response::new(full(Bytes::copy_from_slice(message.trim_ascii_end())));
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// A response that is plain text.
pub(super) fn plain(status: StatusCode, text: &'static str) -> Response<WireBody> {
    let mut response = Response::new(full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}

/// Whether a message's content is of this type.
pub(super) fn is_of_type(headers: &HeaderMap, expected: &str) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case(expected))
}
