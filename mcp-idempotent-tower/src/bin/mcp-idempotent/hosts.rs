//! Which hosts a client may ask for.
//!
//! The server behind the proxy gets requests with its own name, so it cannot tell a client on this
//! machine from a web page whose name was pointed at this machine (DNS rebinding). The proxy has
//! to.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header::HOST, uri::Authority};
use http_body_util::{BodyExt as _, Full};
use mcp_idempotent_tower::relay::http::WireBody;

/// The names that a request may be for.
#[derive(Debug, Clone)]
pub(crate) struct Hosts {
    /// `None` allows any.
    allowed: Option<Vec<String>>,
}

impl Hosts {
    /// At a loopback address, this machine's own names and `more`. Elsewhere `more`, or any name if
    /// that is empty.
    pub(crate) fn at(listen: SocketAddr, more: &[String]) -> Self {
        let mut allowed = more.to_vec();
        if listen.ip().to_canonical().is_loopback() {
            allowed.extend(["localhost".into(), "127.0.0.1".into(), "::1".into()]);
            allowed.push(listen.ip().to_string());
        }
        Self {
            allowed: (!allowed.is_empty()).then_some(allowed),
        }
    }

    pub(crate) fn allow<B>(&self, request: &Request<B>) -> bool {
        let Some(allowed) = &self.allowed else {
            return true;
        };
        let header = request.headers().get(HOST);
        let asked = request.uri().authority().cloned().or_else(|| {
            let host = header?.to_str().ok()?;
            host.parse::<Authority>().ok()
        });
        asked.is_some_and(|asked| {
            let host = asked.host().trim_start_matches('[').trim_end_matches(']');
            allowed.iter().any(|name| name.eq_ignore_ascii_case(host))
        })
    }
}

/// The answer to a request for another host.
pub(crate) fn refused() -> Response<WireBody> {
    let text = "The proxy does not serve this host. Name it with --allowed-host.\n";
    let body = Full::new(Bytes::from_static(text.as_bytes())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_served_if_it_is_for_a_name_of_the_place_or_one_that_is_given() {
        let (here, everywhere) = ("127.0.0.2:80", "0.0.0.0:80");
        for (listen, more, uri, host, expected) in [
            (here, None, "/", Some("localhost"), true),
            (here, None, "/", Some("127.0.0.2:80"), true),
            (here, None, "/", Some("evil.example"), false),
            (here, None, "/", Some("no name"), false),
            (here, None, "/", None, false),
            // A name in the target counts, and then no header.
            (here, None, "http://evil.example/", Some("localhost"), false),
            (here, None, "http://localhost/", Some("evil.example"), true),
            (everywhere, None, "/", Some("any.example"), true),
            (everywhere, None, "/", None, true),
            (
                everywhere,
                Some("shop.example"),
                "/",
                Some("shop.example"),
                true,
            ),
            (
                everywhere,
                Some("shop.example"),
                "/",
                Some("localhost"),
                false,
            ),
        ] {
            let more: Vec<_> = more.into_iter().map(str::to_owned).collect();
            let mut request = Request::get(uri);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            let request = request.body(()).unwrap();
            let hosts = Hosts::at(listen.parse().unwrap(), &more);
            let what = format!("{listen}, {more:?}, {uri}, {host:?}");
            assert_eq!(hosts.allow(&request), expected, "{what}");
        }
    }
}
