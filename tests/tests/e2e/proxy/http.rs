//! The program in front of a reference server over HTTP.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Router;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::{
    program::{Program, proxy},
    servers::{masked, provided},
};

/// A client over HTTP, with its session.
struct Client {
    url: String,
    session: Option<String>,
    requests: u32,
    answers: Vec<(String, Value)>,
}

impl Client {
    fn new(port: u16) -> Self {
        Self {
            url: format!("http://127.0.0.1:{port}/mcp"),
            session: None,
            requests: 0,
            answers: Vec::new(),
        }
    }

    async fn post(&mut self, message: &Value) -> String {
        let mut request = reqwest::Client::new()
            .post(&self.url)
            .header("accept", "application/json, text/event-stream")
            .json(message);
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        let response = request.send().await.unwrap();
        if let Some(session) = response.headers().get("mcp-session-id") {
            self.session = Some(session.to_str().unwrap().to_owned());
        }
        response.text().await.unwrap()
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        let asked = format!("{method} {params}");
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let body = self.post(&request).await;
        let lines = body
            .lines()
            .map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let mut messages = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let answer = messages
            .find(|message| message["id"] == id)
            .unwrap_or_else(|| panic!("{body}"));
        self.answers.push((asked, masked(&answer)));
        answer["result"].clone()
    }

    async fn whole(mut self) -> Vec<(String, Value)> {
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": { "name": "tests", "version": "1" },
        });
        self.ask("initialize", hello).await;
        self.post(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))
            .await;
        self.ask("tools/list", json!({})).await;
        self.ask("prompts/list", json!({})).await;
        for (tool, arguments) in [
            ("echo", json!({ "message": "hello" })),
            ("get-sum", json!({ "a": 1, "b": 2 })),
            ("get-sum", json!({ "a": "no" })),
            (
                "trigger-long-running-operation",
                json!({ "duration": 0.1, "steps": 2 }),
            ),
            ("get-structured-content", json!({ "location": "Chicago" })),
            ("none", json!({})),
        ] {
            self.ask(
                "tools/call",
                json!({ "name": tool, "arguments": arguments }),
            )
            .await;
        }
        // It only reads, so it is protected under a key alone.
        let arguments = json!({ "message": "hello" });
        let echo = json!({ "name": "echo", "arguments": arguments, "idempotencyKey": "k" });
        self.ask("tools/call", echo.clone()).await;
        let again = self.ask("tools/call", echo).await;
        let is_replay = !again["_meta"]["io.github.mcp-idempotent/replayed"].is_null();
        self.answers.pop();
        self.answers.push(("replay".to_owned(), json!(is_replay)));
        self.answers
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn until_served(port: u16) {
    for _ in 0..6000 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing listens on {port}");
}

#[tokio::test]
async fn a_reference_server_over_http_answers_alike_with_and_without_the_proxy() {
    let server_port = free_port();
    let command = [
        format!("PORT={server_port}"),
        provided("node_modules/.bin/mcp-server-everything"),
        "streamableHttp".to_owned(),
    ];
    let _server = Program::start("env", command);
    until_served(server_port).await;
    let direct = Client::new(server_port).whole().await;

    let port = free_port();
    let options = [
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--upstream",
        &format!("http://127.0.0.1:{server_port}"),
        "--scope",
        "tests",
    ]
    .map(str::to_owned);
    let mut proxy = Program::start(proxy(), options);
    until_served(port).await;
    let mut proxied = Client::new(port).whole().await;
    let mut direct = direct;
    assert_eq!(direct.pop().unwrap().1, false);
    assert_eq!(proxied.pop().unwrap().1, true);
    assert_eq!(direct, proxied);

    proxy.signal("TERM").await;
    assert!(proxy.end().await.success());
}

/// A server whose tool answers with this much text once it is told to. The first channel tells of its calls.
async fn slow_server(length: usize) -> (u16, mpsc::Receiver<()>, oneshot::Sender<()>) {
    let (call, calls) = mpsc::channel(1);
    let (answer, told) = oneshot::channel::<()>();
    let told = Arc::new(Mutex::new(Some(told)));
    let post = move |request: String| {
        let request: Value = serde_json::from_str(&request).unwrap();
        let (call, told) = (call.clone(), Arc::clone(&told));
        async move {
            let result = if request["method"] == "tools/call" {
                let told = told.lock().unwrap().take().unwrap();
                call.send(()).await.unwrap();
                told.await.unwrap();
                json!({ "content": [{ "type": "text", "text": "x".repeat(length) }] })
            } else {
                json!({ "tools": [] })
            };
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
            ([("content-type", "application/json")], answer.to_string())
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().route("/mcp", axum::routing::post(post));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (port, calls, answer)
}

#[tokio::test]
async fn an_answer_is_written_whole_after_the_proxy_was_told_to_end() {
    // More than the sockets between them hold.
    const LENGTH: usize = 15 * 1024 * 1024;
    let (server_port, mut calls, answer) = slow_server(LENGTH).await;
    let port = free_port();
    let options = [
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--upstream",
        &format!("http://127.0.0.1:{server_port}"),
        "--scope",
        "tests",
    ]
    .map(str::to_owned);
    let mut proxy = Program::start(proxy(), options);
    until_served(port).await;
    let params = json!({ "name": "charge", "arguments": {} });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = reqwest::Client::new()
        .post(format!("http://127.0.0.1:{port}/mcp"))
        .header("accept", "application/json, text/event-stream")
        .json(&call);
    let asked = tokio::spawn(request.send());
    calls.recv().await.unwrap();
    proxy.signal("TERM").await;
    // It takes no further connections.
    while TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
        sleep(Duration::from_millis(10)).await;
    }
    answer.send(()).unwrap();
    let response = asked.await.unwrap().unwrap();
    assert!(
        response
            .content_length()
            .is_some_and(|length| length > LENGTH as u64)
    );
    let told: Value = response.json().await.unwrap();
    let text = told["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(text.len(), LENGTH);
    assert!(proxy.end().await.success());
}

#[tokio::test]
async fn at_a_loopback_address_a_request_for_another_host_is_refused() {
    let (port, nobody) = (free_port(), free_port());
    let options = [
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--upstream",
        &format!("http://127.0.0.1:{nobody}"),
        "--scope",
        "tests",
        "--allowed-host",
        "shop.example",
    ]
    .map(str::to_owned);
    let _proxy = Program::start(proxy(), options);
    until_served(port).await;
    let asked_for = async |host: &str| {
        let request = reqwest::Client::new().get(format!("http://127.0.0.1:{port}/mcp"));
        let response = request.header("host", host).send().await.unwrap();
        response.status().as_u16()
    };
    for host in ["evil.example", "evil.example:80", "localhost.evil.example"] {
        assert_eq!(asked_for(host).await, 403, "{host}");
    }
    // These get as far as the server, which is away.
    for host in [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "[::1]:9",
        "shop.example",
    ] {
        assert_eq!(asked_for(host).await, 502, "{host}");
    }
}
