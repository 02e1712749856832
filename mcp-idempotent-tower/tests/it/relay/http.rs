//! The relay over HTTP, in front of a server that the test plays.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Method, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use mcp_idempotent_tower::{
    Denied, Idempotency, MemoryStore, Scope,
    relay::{
        Relay, RelaySettings,
        http::{HttpRelay, WireBody},
    },
};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tower::{ServiceExt as _, service_fn};

use super::ends::{call, cancelled, refusal_of, text, text_of};

type ServerBody = UnsyncBoxBody<Bytes, Infallible>;

/// A request that waits for the server's response.
struct Asked {
    request: Request<Bytes>,
    answer: oneshot::Sender<Response<ServerBody>>,
}

impl Asked {
    fn message(&self) -> Value {
        serde_json::from_slice(self.request.body()).unwrap()
    }

    fn answer(self, status: u16, content_type: &str, body: impl Into<Bytes>) {
        self.stream(status, content_type, stream::iter([body.into()]));
    }

    fn stream(
        self,
        status: u16,
        content_type: &str,
        body: impl stream::Stream<Item = Bytes> + Send + 'static,
    ) {
        let frames = body.map(|bytes| Ok(Frame::data(bytes)));
        let response = Response::builder()
            .status(status)
            .header(CONTENT_TYPE, content_type)
            .header("x-kept", "yes")
            .body(StreamBody::new(frames).boxed_unsync())
            .unwrap();
        assert!(self.answer.send(response).is_ok());
    }

    fn result(self, result: Value) {
        let answer = json!({ "jsonrpc": "2.0", "id": self.message()["id"], "result": result });
        self.answer(200, "application/json", answer.to_string());
    }
}

/// What the relay asks the server.
struct Server(mpsc::UnboundedReceiver<Asked>);

impl Server {
    async fn hear(&mut self) -> Asked {
        let asked = timeout(Duration::from_secs(60), self.0.recv()).await;
        asked.expect("nothing came").unwrap()
    }

    async fn list(&mut self) {
        let asked = self.hear().await;
        assert_eq!(asked.message()["method"], "tools/list");
        asked.result(json!({ "tools": [{ "name": "charge" }] }));
    }
}

/// A relay whose callers are told apart by a header.
fn relay(settings: RelaySettings) -> (HttpRelay<MemoryStore>, Server) {
    let idempotency = Idempotency::builder("shop", MemoryStore::new())
        .with_scope_from_http(|head| {
            let name = head
                .headers
                .get("x-user")
                .and_then(|name| name.to_str().ok());
            name.map(Scope::new).ok_or_else(|| Denied::new("sign in"))
        })
        .build()
        .unwrap();
    let relay = Relay::new(idempotency, settings).unwrap();
    let (asked, server) = mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<WireBody>| {
        let asked = asked.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (answer, answered) = oneshot::channel();
            let request = Request::from_parts(head, body);
            asked
                .send(Asked { request, answer })
                .map_err(|_| "the server has ended")?;
            Ok::<_, tower::BoxError>(answered.await?)
        }
    });
    let relay = HttpRelay::new(relay, "server:80".parse().unwrap(), service);
    (relay, Server(server))
}

fn post(user: &str, message: &Value) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri("/mcp?a=b")
        .header(CONTENT_TYPE, "application/json")
        .header("host", "proxy")
        .header("x-user", user)
        .header("mcp-session-id", user)
        .body(Full::from(message.to_string()))
        .unwrap()
}

type Client = tokio::task::JoinHandle<Response<WireBody>>;

fn send(relay: &HttpRelay<MemoryStore>, request: Request<Full<Bytes>>) -> Client {
    let relay = relay.clone();
    tokio::spawn(async move { relay.oneshot(request).await.unwrap() })
}

async fn body(response: Response<WireBody>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

async fn message(response: Response<WireBody>) -> Value {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    serde_json::from_str(&body(response).await).unwrap()
}

#[tokio::test]
async fn over_http_a_repeated_call_gets_the_first_result_and_other_callers_do_not() {
    let (relay, mut server) = relay(RelaySettings::default());
    let charge = |id: u64| call(json!(id), "charge", json!({}));
    let first = send(&relay, post("ann", &charge(1)));
    server.list().await;
    let asked = server.hear().await;
    assert_eq!(asked.request.uri(), "http://server:80/mcp?a=b");
    assert_eq!(asked.request.headers()["x-user"], "ann");
    assert_eq!(asked.message(), charge(1));
    let joins = send(&relay, post("ann", &charge(2)));
    asked.result(text("charged"));
    let first = first.await.unwrap();
    assert_eq!(first.headers()["x-kept"], "yes");
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": text("charged") });
    assert_eq!(message(first).await, answer);
    for (id, answer) in [(2, joins), (3, send(&relay, post("ann", &charge(3))))] {
        let told = message(answer.await.unwrap()).await;
        assert_eq!((&told["id"], text_of(&told)), (&json!(id), "charged"));
    }
    let other = send(&relay, post("bob", &charge(1)));
    server.list().await;
    server.hear().await.result(text("charged bob"));
    assert_eq!(text_of(&message(other.await.unwrap()).await), "charged bob");
}

/// The proxy stands in front of an address, where several servers may be.
#[tokio::test]
async fn calls_at_two_paths_are_no_repeats_of_each_other() {
    let (relay, mut server) = relay(RelaySettings::default());
    for place in ["/a", "/b", "/b?tenant=1", "/b?tenant=2"] {
        let at_place = || {
            let mut request = post("ann", &call(json!(1), "charge", json!({})));
            *request.uri_mut() = place.parse().unwrap();
            request
        };
        let first = send(&relay, at_place());
        server.list().await;
        server.hear().await.result(text(place));
        assert_eq!(text_of(&message(first.await.unwrap()).await), place);
        let again = send(&relay, at_place());
        assert_eq!(text_of(&message(again.await.unwrap()).await), place);
    }
}

#[tokio::test]
async fn an_answer_that_is_too_long_to_be_read_is_told_so_in_both_forms() {
    for content_type in ["application/json", "text/event-stream"] {
        let mut settings = RelaySettings::default();
        settings.max_message_bytes = 1024;
        let (relay, mut server) = relay(settings);
        let charge = call(json!(1), "charge", json!({}));
        let told = send(&relay, post("ann", &charge));
        server.list().await;
        let long = json!({ "id": 1, "result": text(&"x".repeat(4096)) });
        let long = match content_type {
            "application/json" => long.to_string(),
            _ => format!("data: {long}\n\n"),
        };
        server.hear().await.answer(200, content_type, long);
        let body = body(told.await.unwrap()).await;
        assert!(
            body.contains("idempotency_result_too_large"),
            "{content_type}: {body}"
        );
        let again = message(send(&relay, post("ann", &charge)).await.unwrap()).await;
        assert_eq!(refusal_of(&again)["outcome"], "unknown");
    }
}

#[tokio::test]
async fn all_other_requests_and_responses_pass_as_they_came() {
    let (relay, mut server) = relay(RelaySettings::default());
    for (method, sent) in [
        (Method::GET, &b""[..]),
        (Method::DELETE, b""),
        (Method::POST, b"{ \"method\":\"x\", \"id\" : 1.0 }"),
        (Method::POST, b"\xff no JSON"),
        (Method::POST, b"[{\"method\":\"ping\",\"id\":1}]"),
    ] {
        let mut request = post("ann", &json!(0)).map(|_| Full::from(sent));
        *request.method_mut() = method.clone();
        let answer = send(&relay, request);
        let asked = server.hear().await;
        assert_eq!(
            (asked.request.method(), &asked.request.body()[..]),
            (&method, sent)
        );
        assert_eq!(asked.request.headers()["mcp-session-id"], "ann");
        assert!(!asked.request.headers().contains_key("host"));
        // The response passes while it comes.
        let (tell, told) = mpsc::unbounded_channel::<Bytes>();
        let told = stream::unfold(told, |mut told| async { Some((told.recv().await?, told)) });
        asked.stream(418, "text/odd", told);
        let response = answer.await.unwrap();
        assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
        let mut body = response.into_body();
        for part in ["one", "two"] {
            tell.send(Bytes::from(part)).unwrap();
            let frame = body.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), part);
        }
        drop(tell);
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn events_pass_while_they_come_and_a_retry_gets_the_answer_as_json() {
    let (relay, mut server) = relay(RelaySettings::default());
    let charge = call(json!("a"), "charge", json!({}));
    let first = send(&relay, post("ann", &charge));
    server.list().await;
    let asked = server.hear().await;
    let (tell, told) = mpsc::unbounded_channel::<Bytes>();
    let told = stream::unfold(told, |mut told| async { Some((told.recv().await?, told)) });
    asked.stream(200, "text/event-stream; charset=utf-8", told);
    let response = first.await.unwrap();
    assert_eq!(response.headers()["x-kept"], "yes");
    let mut body = response.into_body();
    let progress = "event: message\nid: 1\ndata: {\"method\":\"notifications/progress\"}\n\n";
    tell.send(Bytes::from(progress)).unwrap();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        progress
    );
    let answer = "id: 2\r\ndata: {\"result\":{ \"content\":[]},\"id\":\"a\"}\r\n\r\n";
    tell.send(Bytes::from(answer)).unwrap();
    assert_eq!(
        body.frame().await.unwrap().unwrap().into_data().unwrap(),
        answer
    );
    assert!(body.frame().await.is_none());

    let told = message(send(&relay, post("ann", &charge)).await.unwrap()).await;
    assert_eq!(told["result"]["content"], json!([]));
    assert!(told["result"]["_meta"]["io.github.mcp-idempotent/replayed"].is_object());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_breaks_off_is_resumed_after_its_last_event_and_else_the_call_is_unknown() {
    let (relay, mut server) = relay(RelaySettings::default());
    for is_resumable in [true, false] {
        let charge = call(json!(1), "charge", json!({ "a": is_resumable }));
        let first = send(&relay, post("ann", &charge));
        if is_resumable {
            server.list().await;
        }
        let id = if is_resumable { "id: e7\n" } else { "" };
        let asked = server.hear().await;
        asked.answer(200, "text/event-stream", format!("{id}data: \n\n"));
        if is_resumable {
            let resumed = server.hear().await;
            assert_eq!(resumed.request.method(), Method::GET);
            assert_eq!(resumed.request.headers()["last-event-id"], "e7");
            assert_eq!(resumed.request.headers()["mcp-session-id"], "ann");
            let answer = json!({ "id": 1, "result": text("charged") });
            resumed.answer(200, "text/event-stream", format!("data: {answer}\n\n"));
        }
        let told = body(first.await.unwrap()).await;
        let expected = if is_resumable {
            "charged"
        } else {
            "may have run"
        };
        assert!(told.contains(expected), "{told}");
        let again = message(send(&relay, post("ann", &charge)).await.unwrap()).await;
        let expected = if is_resumable {
            Value::Null
        } else {
            json!("unknown")
        };
        assert_eq!(refusal_of(&again)["outcome"], expected);
    }
}

#[tokio::test]
async fn a_status_says_whether_the_call_ran() {
    let (relay, mut server) = relay(RelaySettings::default());
    let charge = call(json!(1), "charge", json!({}));
    let mut is_first = true;
    for status in [404, 401, 500] {
        let answer = send(&relay, post("ann", &charge));
        if std::mem::take(&mut is_first) {
            server.list().await;
        }
        server.hear().await.answer(status, "text/plain", "sorry");
        let answer = answer.await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), body(answer).await.as_str()),
            (status, "sorry")
        );
    }
    let told = message(send(&relay, post("ann", &charge)).await.unwrap()).await;
    assert_eq!(refusal_of(&told)["outcome"], "unknown");
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_the_result_for_its_retry() {
    let (relay, mut server) = relay(RelaySettings::default());
    let charge = call(json!(1), "charge", json!({}));
    let first = send(&relay, post("ann", &charge));
    server.list().await;
    let asked = server.hear().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let retry = send(&relay, post("ann", &charge));
    asked.result(text("charged"));
    assert_eq!(text_of(&message(retry.await.unwrap()).await), "charged");
}

#[tokio::test]
async fn a_cancellation_of_a_protected_call_is_not_forwarded_over_http() {
    let (relay, mut server) = relay(RelaySettings::default());
    let first = send(&relay, post("ann", &call(json!(1), "charge", json!({}))));
    server.list().await;
    let asked = server.hear().await;
    let cancelled = cancelled(&json!(1));
    let told = send(&relay, post("ann", &cancelled)).await.unwrap();
    assert_eq!(told.status(), StatusCode::ACCEPTED);
    // That of another session is.
    let other = send(&relay, post("bob", &cancelled));
    server.hear().await.answer(202, "text/plain", "");
    other.await.unwrap();
    asked.result(text("charged"));
    assert_eq!(text_of(&message(first.await.unwrap()).await), "charged");
}

#[tokio::test]
async fn what_cannot_be_protected_over_http_is_refused() {
    let mut settings = RelaySettings::default();
    settings.max_message_bytes = 1000;
    let (relay, _server) = relay(settings);
    let charge = call(json!(1), "charge", json!({}));
    for (sent, status) in [
        (json!([charge]), 400),
        (json!({ "method": "x".repeat(1000) }), 413),
    ] {
        let told = send(&relay, post("ann", &sent)).await.unwrap();
        assert_eq!(told.status().as_u16(), status);
    }
}
