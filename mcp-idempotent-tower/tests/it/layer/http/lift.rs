//! The key in the place that SEP-3182 chose.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::body::{Body, Bytes};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use mcp_idempotent_tower::http::{LiftKeyLayer, LiftedBody};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, Tool},
    service::RequestContext,
};
use serde_json::{Value, json};
use tower::{Layer as _, Service as _, ServiceExt as _, service_fn};

use super::{Mode, Site, behind, builder, by_user, called};
use crate::layer::{Mailer, number, refusal};

const LEGACY: [(&str, &str); 2] = [("MCP-Protocol-Version", "2025-11-25"), ("x-user", "ann")];

async fn site() -> Site {
    let idempotency = by_user(builder());
    Site::of(behind(&Mailer::new(), &idempotency), Mode::Stateless).await
}

#[tokio::test]
async fn a_key_in_the_params_protects() {
    let site = site().await;
    for (key, expected) in [("a", 1), ("b", 2), ("a", 1)] {
        let body = called("send", json!({ "idempotencyKey": key }));
        assert_eq!(number(&site.answer(&LEGACY, &body).await), expected);
    }
    // It is the same key as in `_meta`.
    let body = called("send", json!({ "_meta": { "idempotency-key": "a" } }));
    assert_eq!(number(&site.answer(&LEGACY, &body).await), 1);
}

#[tokio::test]
async fn a_key_that_contradicts_meta_is_refused_and_so_is_one_of_a_wrong_form() {
    let site = site().await;
    for more in [
        json!({ "idempotencyKey": "a", "_meta": { "idempotency-key": "b" } }),
        json!({ "idempotencyKey": "a", "_meta": {
            "idempotency-key": "b", "io.github.mcp-idempotent/idempotency-key": "b",
        } }),
        json!({ "idempotencyKey": "a", "_meta": {
            "io.github.mcp-idempotent/idempotency-key": "b",
        } }),
        json!({ "idempotencyKey": 5 }),
        json!({ "idempotencyKey": null }),
        json!({ "idempotencyKey": "" }),
    ] {
        let answer = site.answer(&LEGACY, &called("send", more.clone())).await;
        let (kind, outcome) = refusal(&answer);
        assert_eq!(kind, "idempotency_key_invalid", "{more}");
        assert_eq!(outcome, "not_committed");
    }
    let same = json!({ "idempotencyKey": "a", "_meta": { "idempotency-key": "a" } });
    let answer = site.answer(&LEGACY, &called("send", same)).await;
    assert_eq!(number(&answer), 1);
}

/// A header as it comes with every request, and one of this call.
fn with_key_header(key: &str) -> [(&str, &str); 3] {
    [LEGACY[0], LEGACY[1], ("Idempotency-Key", key)]
}

#[tokio::test]
async fn a_key_in_the_header_protects_where_it_is_allowed() {
    let server = behind(&Mailer::new(), &by_user(builder()));
    let site = Site::behind(LiftKeyLayer::new().with_header(), server, Mode::Stateless).await;
    for (key, expected) in [("a", 1), ("b", 2), ("a", 1)] {
        let answer = site
            .answer(&with_key_header(key), &called("send", json!({})))
            .await;
        assert_eq!(number(&answer), expected);
    }
    // It is the same key as in `_meta`, and one that contradicts is refused.
    for (key, is_refused) in [("a", false), ("b", true)] {
        let body = called("send", json!({ "_meta": { "idempotency-key": "a" } }));
        let answer = site.answer(&with_key_header(key), &body).await;
        if is_refused {
            assert_eq!(refusal(&answer).0, "idempotency_key_invalid");
        } else {
            assert_eq!(number(&answer), 1);
        }
    }
}

#[tokio::test]
async fn headers_that_contradict_each_other_or_are_no_text_are_refused() {
    let server = behind(&Mailer::new(), &by_user(builder()));
    let site = Site::behind(LiftKeyLayer::new().with_header(), server, Mode::Stateless).await;
    let body = called("send", json!({}));
    let [first, second, a] = with_key_header("a");
    let twice = |b| [first, second, a, ("Idempotency-Key", b)];
    let no_text = with_key_header("\u{e9}");
    for headers in [&twice("b")[..], &no_text] {
        let (answer, kind) = (site.answer(headers, &body).await, "idempotency_key_invalid");
        assert_eq!(refusal(&answer).0, kind, "{headers:?}");
    }
    assert_eq!(number(&site.answer(&twice("a"), &body).await), 1);
}

#[tokio::test]
async fn a_key_in_the_header_is_not_read_by_default() {
    let site = site().await;
    for expected in [1, 2] {
        let answer = site
            .answer(&with_key_header("a"), &called("send", json!({})))
            .await;
        assert_eq!(number(&answer), expected);
    }
}

#[tokio::test]
async fn a_key_whose_name_has_escapes_protects() {
    let site = site().await;
    for (name, expected) in [
        (r"\u0069dempotencyKey", 1),
        (r"idempotency\u004bey", 1),
        ("idempotencyKey", 1),
    ] {
        // Written by hand: a serializer would not escape it.
        let body = called("send", json!({ "THE KEY": "k" }));
        let text = body.to_string().replace("THE KEY", name);
        assert_eq!(number(&site.answer_text(&LEGACY, &text).await), expected);
    }
}

#[tokio::test]
async fn the_servers_answer_says_where_else_a_key_may_stand() {
    for mode in [Mode::Stateless, Mode::Sessions] {
        let idempotency = by_user(builder());
        let site = Site::of(behind(&Mailer::new(), &idempotency), mode).await;
        let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "c", "version": "1" },
        }});
        let answer = site.post(&[], &initialize).await;
        assert!(
            answer.contains(r#""tools":{"idempotency":{}}"#),
            "{mode:?}: {answer}"
        );
        assert!(
            answer.contains(r#"idempotency-key\"]","params.idempotencyKey"]"#),
            "{mode:?}: {answer}"
        );
    }
}

/// Has an argument that travels in a header too.
#[derive(Clone)]
struct Deployer(Mailer);

impl ServerHandler for Deployer {
    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(CallToolResult::structured(json!(self.0.count())).into())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let schema = json!({ "type": "object", "properties": {
            "text": { "type": "string", "x-mcp-header": "Text" },
        }});
        let Value::Object(schema) = schema else {
            return None;
        };
        (name == "deploy").then(|| Tool::new("deploy", "Deploys.", Arc::new(schema)))
    }
}

#[tokio::test]
async fn headers_and_body_of_the_2026_07_28_transport_still_agree() {
    use mcp_idempotent_tower::ServerExt as _;
    let layer =
        mcp_idempotent_tower::IdempotencyLayer::new(by_user(builder()), crate::layer::lease());
    let server = Deployer(Mailer::new()).idempotent(layer.unwrap());
    let site = Site::of(server, Mode::Stateless).await;
    let body = called(
        "deploy",
        json!({ "idempotencyKey": "k", "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "c", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        }}),
    );
    let headers = |text| {
        [
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", "tools/call"),
            ("Mcp-Name", "deploy"),
            ("Mcp-Param-Text", text),
            ("x-user", "ann"),
        ]
    };
    for _ in 0..2 {
        assert_eq!(number(&site.answer(&headers("hello"), &body).await), 1);
    }
    let contradicting = site.post(&headers("other"), &body).await;
    assert!(contradicting.contains("400"), "{contradicting}");
}

type Seen = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

/// Sends a request through the layer; what the service behind it saw, or the refusal.
async fn through(
    layer: LiftKeyLayer,
    request: Request<Body>,
) -> Result<(HeaderMap, Bytes), StatusCode> {
    let seen = Seen::default();
    let behind = Arc::clone(&seen);
    let mut service = layer.layer(service_fn(move |request: Request<LiftedBody<Body>>| {
        let seen = Arc::clone(&behind);
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(Body::new(body), usize::MAX)
                .await
                .unwrap();
            seen.lock().unwrap().push((parts.headers, body));
            Ok::<_, Infallible>(Response::new(Body::empty()))
        }
    }));
    let response = service.ready().await.unwrap().call(request).await.unwrap();
    let seen = seen.lock().unwrap().pop();
    seen.ok_or(response.status())
}

fn in_pieces(text: &'static str, size: usize) -> Body {
    let pieces = text.as_bytes().chunks(size).map(Ok::<_, Infallible>);
    Body::from_stream(futures_util::stream::iter(pieces))
}

#[tokio::test]
async fn every_other_request_passes_byte_for_byte() {
    for (method, text) in [
        (
            Method::POST,
            r#"{ "method": "tools/list" , "params":{"idempotencyKey":"k"} }"#,
        ),
        (
            Method::POST,
            r#"{"method":"tools/call","params":{"name":"a", "x": 1.500}}"#,
        ),
        (Method::POST, "not JSON: idempotencyKey"),
        (Method::POST, ""),
        (
            Method::GET,
            r#"{"method":"tools/call","params":{"idempotencyKey":"k"}}"#,
        ),
        (Method::DELETE, ""),
    ] {
        for size in [1, 7, 1000] {
            let request = Request::builder()
                .method(method.clone())
                .header("content-length", text.len())
                .header("x-mine", "1")
                .body(in_pieces(text, size))
                .unwrap();
            let headers = request.headers().clone();
            let seen = through(LiftKeyLayer::new(), request).await.unwrap();
            assert_eq!(seen, (headers, Bytes::from(text)));
        }
    }
}

#[tokio::test]
async fn the_content_length_agrees_with_the_edited_body() {
    let text = r#"{"method":"tools/call","params":{"idempotencyKey":"k"}}"#;
    let edited = r#"{"method":"tools/call","params":{"_meta":{"idempotency-key":"k"},"idempotencyKey":"k"}}"#;
    for size in [1, 7, 1000] {
        let request = Request::post("/")
            .header("content-length", text.len())
            .body(in_pieces(text, size))
            .unwrap();
        let (headers, body) = through(LiftKeyLayer::new(), request).await.unwrap();
        assert_eq!(body, edited);
        assert_eq!(headers["content-length"], edited.len().to_string());
        // Without a length there is none to correct.
        let request = Request::post("/").body(in_pieces(text, size)).unwrap();
        let (headers, body) = through(LiftKeyLayer::new(), request).await.unwrap();
        assert_eq!((headers.len(), body), (0, edited.into()));
    }
}

#[tokio::test]
async fn the_content_length_agrees_with_the_edited_answer() {
    let text = r#"{"result":{"capabilities":{"tools":{}}}}"#;
    let edited = r#"{"result":{"capabilities":{"tools":{"idempotency":{}}}}}"#;
    let server = service_fn(move |_: Request<LiftedBody<Body>>| async move {
        let answer = Response::builder().header("content-length", text.len());
        Ok::<_, Infallible>(answer.body(Body::from(text)).unwrap())
    });
    let mut service = LiftKeyLayer::new().with_capability().layer(server);
    for method in ["initialize", "server/discover"] {
        let asked = Body::from(json!({ "method": method }).to_string());
        let request = Request::post("/").body(asked).unwrap();
        let answer = service.ready().await.unwrap().call(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = axum::body::to_bytes(Body::new(body), usize::MAX)
            .await
            .unwrap();
        assert_eq!(body, edited, "{method}");
        assert_eq!(head.headers["content-length"], edited.len().to_string());
    }
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_not_read_to_its_end() {
    let text = r#"{"method":"ping"}"#;
    let layer = LiftKeyLayer::new().with_limit(text.len());
    for size in [1, 7, 1000] {
        let request = Request::post("/").body(in_pieces(text, size)).unwrap();
        assert_eq!(through(layer, request).await.unwrap().1, text);
    }
    let layer = LiftKeyLayer::new().with_limit(text.len() - 1);
    for size in [1, 7, 1000] {
        let request = Request::post("/").body(in_pieces(text, size)).unwrap();
        let refused = through(layer, request).await;
        assert_eq!(refused.unwrap_err(), StatusCode::PAYLOAD_TOO_LARGE);
    }
    let endless = futures_util::stream::repeat_with(|| Ok::<_, Infallible>("more"));
    let request = Request::post("/").body(Body::from_stream(endless)).unwrap();
    let refused = through(LiftKeyLayer::new(), request).await;
    assert_eq!(refused.unwrap_err(), StatusCode::PAYLOAD_TOO_LARGE);
}
