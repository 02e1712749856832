//! The server that the proxy reaches over HTTP.

use std::{io, str::FromStr};

use http::{
    Request, Response, Uri,
    uri::{Authority, Scheme},
};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, Error},
    rt::TokioExecutor,
};
use mcp_idempotent_tower::relay::http::WireBody;
use tower::util::BoxCloneSyncService;

/// Sends requests to the server.
pub(crate) type UpstreamClient = BoxCloneSyncService<Request<WireBody>, Response<Incoming>, Error>;

/// Where the server is, and whether it is reached over TLS.
#[derive(Debug, Clone)]
pub(crate) struct Upstream {
    authority: Authority,
    is_over_tls: bool,
}

impl Upstream {
    pub(crate) const fn authority(&self) -> &Authority {
        &self.authority
    }

    /// # Errors
    ///
    /// It is reached over TLS, and this machine trusts no certificates.
    pub(crate) fn client(&self) -> io::Result<UpstreamClient> {
        if self.is_over_tls {
            return over_tls();
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(BoxCloneSyncService::new(client))
    }
}

#[cfg(feature = "cli")]
fn over_tls() -> io::Result<UpstreamClient> {
    use http::request::Parts;
    use hyper_rustls::HttpsConnectorBuilder;
    use tower::{ServiceExt as _, service_fn};

    let connector = HttpsConnectorBuilder::new().with_native_roots()?;
    let connector = connector.https_only().enable_http1().build();
    let client = Client::builder(TokioExecutor::new()).build(connector);
    Ok(BoxCloneSyncService::new(service_fn(move |request| {
        let (mut head, body): (Parts, WireBody) = Request::into_parts(request);
        let mut uri = std::mem::take(&mut head.uri).into_parts();
        uri.scheme = Some(Scheme::HTTPS);
        // The relay gives each request an authority and a path.
        head.uri = Uri::from_parts(uri).unwrap_or_default();
        client.clone().oneshot(Request::from_parts(head, body))
    })))
}

#[cfg(not(feature = "cli"))]
fn over_tls() -> io::Result<UpstreamClient> {
    Err(io::Error::other(
        "this program was built without TLS; build it with the feature `cli`",
    ))
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "type http://HOST:PORT or https://HOST, without a path: a client's path stays what it is".to_owned()
        };
        let url: Uri = text.parse().map_err(|_| wrong())?;
        let schemes = [Some(&Scheme::HTTP), Some(&Scheme::HTTPS)];
        if !schemes.contains(&url.scheme()) || !matches!(url.path(), "" | "/") {
            return Err(wrong());
        }
        Ok(Self {
            is_over_tls: url.scheme() == Some(&Scheme::HTTPS),
            authority: url.authority().cloned().ok_or_else(wrong)?,
        })
    }
}
