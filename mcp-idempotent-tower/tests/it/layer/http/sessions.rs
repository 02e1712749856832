//! Callers over HTTP: who they are, and that they may leave.

use std::collections::HashMap;

use mcp_idempotent_tower::{Denied, Scope, ServerExt as _, wire};
use rmcp::{
    ErrorData, RoleClient, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::tool::ToolRouter,
    model::{ClientRequest, CustomRequest, PingRequest, ServerRequest, ServerResult},
    service::{RequestContext, RunningService},
    tool, tool_handler, tool_router,
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::json;

use super::{Mode, Site, behind, builder, by_user, called, read_until};
use crate::{
    client::{call, params},
    layer::{Mailer, hello, key, layer, lease, number, refusal, send, until},
};

async fn connect(site: Site, user: &str) -> RunningService<RoleClient, ()> {
    let mut config = StreamableHttpClientTransportConfig::with_uri(site.uri());
    config.custom_headers = HashMap::from([(
        http::HeaderName::from_static("x-user"),
        http::HeaderValue::from_str(user).unwrap(),
    )]);
    ().serve(StreamableHttpClientTransport::from_config(config))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_retry_on_a_new_session_gets_the_first_result_and_another_principal_does_not() {
    let mailer = Mailer::new();
    let idempotency = by_user(builder());
    // Two instances of the server, as behind a load balancer.
    let one = Site::of(behind(&mailer, &idempotency), Mode::Sessions).await;
    let two = Site::of(behind(&mailer, &idempotency), Mode::Sessions).await;
    let ann = connect(one, "ann").await;
    assert_eq!(send(&ann, key("k")).await, 1);
    drop(ann);
    let ann = connect(two, "ann").await;
    assert_eq!(send(&ann, key("k")).await, 1);
    let bob = connect(two, "bob").await;
    assert_eq!(send(&bob, key("k")).await, 2);
    assert_eq!(mailer.sent(), 2);
}

#[tokio::test]
async fn the_status_request_knows_the_caller_over_http() {
    let mailer = Mailer::new();
    let idempotency = by_user(builder());
    let site = Site::of(behind(&mailer, &idempotency), Mode::Sessions).await;
    let ann = connect(site, "ann").await;
    assert_eq!(send(&ann, key("k")).await, 1);
    for (user, expected) in [("ann", "completed"), ("bob", "not_seen")] {
        let client = connect(site, user).await;
        let asked = CustomRequest::new(wire::STATUS_METHOD, Some(json!({ "key": "k" })));
        match client
            .send_request(ClientRequest::CustomRequest(asked))
            .await
        {
            Ok(ServerResult::CustomResult(status)) => {
                assert_eq!(status.0["state"], expected, "{user}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn without_a_scope_a_keyed_call_is_refused_with_the_name_of_the_remedy() {
    let server = Mailer::new().idempotent(layer(lease()));
    let site = Site::of(server.clone(), Mode::Sessions).await;
    let client = connect(site, "ann").await;
    let answer = call(&client, params("send", hello(), key("k"))).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_misconfigured", "not_committed")
    );
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("scope_from"), "{message}");
    assert_eq!(server.handler().sent(), 0);

    let shared = builder()
        .with_scope_shared_by_all_callers()
        .build()
        .unwrap();
    let site = Site::of(behind(&Mailer::new(), &shared), Mode::Sessions).await;
    assert_eq!(send(&connect(site, "ann").await, key("k")).await, 1);
    assert_eq!(send(&connect(site, "bob").await, key("k")).await, 1);
}

#[tokio::test]
async fn one_caller_on_a_pipe_and_users_over_http_are_told_apart() {
    let mailer = Mailer::new();
    let idempotency = builder()
        .with_one_caller()
        .with_scope_from_http(|parts| {
            let user = parts
                .headers
                .get("x-user")
                .and_then(|user| user.to_str().ok());
            match user {
                Some("mallory") | None => Err(Denied::new("who are you?")),
                Some(user) => Ok(Scope::new(user)),
            }
        })
        .build()
        .unwrap();
    let server = behind(&mailer, &idempotency);
    let site = Site::of(server.clone(), Mode::Sessions).await;
    let clients = [
        crate::client::connect(server).await,
        connect(site, "ann").await,
        connect(site, "bob").await,
    ];
    for _ in 0..2 {
        for (client, number) in clients.iter().zip(1..) {
            assert_eq!(send(client, key("k")).await, number);
        }
    }
    let denied = connect(site, "mallory").await;
    for meta in [key("k"), json!(null)] {
        let answer = call(&denied, params("send", hello(), meta)).await;
        assert_eq!(refusal(&answer).0, "idempotency_unauthorized");
    }
    assert_eq!(mailer.sent(), 3);
}

#[tokio::test]
async fn a_connection_that_breaks_during_the_call_costs_no_second_effect() {
    for modern in [false, true] {
        let mailer = Mailer::new();
        let idempotency = by_user(builder());
        let site = Site::of(behind(&mailer, &idempotency), Mode::Stateless).await;
        let version = if modern { "2026-07-28" } else { "2025-11-25" };
        let mut headers = vec![("MCP-Protocol-Version", version), ("x-user", "ann")];
        let mut meta = json!({ "idempotency-key": "k" });
        if modern {
            headers.extend([("Mcp-Method", "tools/call"), ("Mcp-Name", "send_slowly")]);
            meta["io.modelcontextprotocol/protocolVersion"] = version.into();
            meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "c", "version": "1" });
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let body = called("send_slowly", json!({ "_meta": meta }));
        let broken = site.send(&headers, &body).await;
        until("began", || mailer.sent() == 1).await;
        drop(broken);
        let retry = tokio::spawn({
            let headers: Vec<_> = headers.clone();
            async move { site.answer(&headers, &body).await }
        });
        until("joined", || idempotency.engine().waiting() == 1).await;
        mailer.go_on.add_permits(1);
        let answer = retry.await.unwrap();
        assert_eq!(number(&answer), 1, "{version}");
        assert_eq!(mailer.sent(), 1, "{version}");
    }
}

/// Asks the client something before it answers.
#[derive(Clone)]
struct Asking {
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Asking {
    #[tool]
    async fn ask(&self, context: RequestContext<RoleServer>) -> Result<String, ErrorData> {
        let ping = ServerRequest::PingRequest(PingRequest::default());
        match context.peer.send_request(ping).await {
            Ok(_) => Ok("asked".into()),
            Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
        }
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Asking {}

#[tokio::test]
async fn what_a_handler_asks_the_client_comes_on_the_stream_of_its_call() {
    let asking = Asking {
        tool_router: Asking::tool_router(),
    };
    let idempotency = by_user(builder());
    let layer = mcp_idempotent_tower::IdempotencyLayer::new(idempotency, lease()).unwrap();
    let site = Site::of(asking.idempotent(layer), Mode::Sessions).await;
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "c", "version": "1" },
    }});
    let head = site.post(&[], &initialize).await;
    let session = head
        .lines()
        .find_map(|line| line.strip_prefix("mcp-session-id: "))
        .unwrap_or_else(|| panic!("no session: {head}"));
    let headers = [
        ("Mcp-Session-Id", session),
        ("MCP-Protocol-Version", "2025-11-25"),
        ("x-user", "ann"),
    ];
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    site.post(&headers, &initialized).await;
    let body = called("ask", json!({ "_meta": key("k") }));
    let mut stream = site.send(&headers, &body).await;
    let asked = read_until(&mut stream, |text| text.contains(r#""method":"ping""#)).await;
    let ping = asked
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .find(|data| data.contains("ping"))
        .unwrap_or_else(|| panic!("not asked on this stream: {asked}"));
    let ping: serde_json::Value = serde_json::from_str(ping).unwrap();
    let pong = json!({ "jsonrpc": "2.0", "id": ping["id"], "result": {} });
    site.post(&headers, &pong).await;
    let answered = read_until(&mut stream, |text| text.contains("asked")).await;
    assert!(answered.contains(r#""text":"asked""#), "{answered}");
}
