//! What becomes of a call in doubt, and what a handler can know of its attempt.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    Attempt, Audit, Idempotency, InDoubt, MemoryStore, NotExecuted, RecordQuery, RecordStatus,
    Resolution, Resolved, Verdict, idempotent,
};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, call, connect, keyed, params, until};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Invoice {
    number: u32,
}

#[derive(Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
struct Paid {
    run: u32,
}

/// What the other side says of a call in doubt.
#[derive(Debug, Clone, Copy)]
enum OtherSide {
    Paid,
    NotPaid,
    Away,
    Panics,
}

#[derive(Clone)]
struct Server {
    idempotency: Idempotency<MemoryStore>,
    runs: Arc<AtomicU32>,
    asked: Arc<AtomicU32>,
    keys: Arc<Mutex<Vec<String>>>,
    other_side: Arc<Mutex<OtherSide>>,
    /// Whether the handler fails after it has acted.
    fails: Arc<Mutex<bool>>,
    gate: Arc<Semaphore>,
    fired: Arc<Semaphore>,
}

#[tool_router(server_handler)]
impl Server {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("doubt", MemoryStore::new()).unwrap(),
            runs: Arc::default(),
            asked: Arc::default(),
            keys: Arc::default(),
            other_side: Arc::new(Mutex::new(OtherSide::Away)),
            fails: Arc::new(Mutex::new(true)),
            gate: Arc::new(Semaphore::new(0)),
            fired: Arc::new(Semaphore::new(0)),
        }
    }

    fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    fn act(&self, attempt: &Attempt) -> Result<Json<Paid>, ErrorData> {
        let key = attempt.downstream_key("pay").to_string();
        self.keys.lock().unwrap().push(key);
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        if *self.fails.lock().unwrap() {
            return Err(ErrorData::internal_error("timed out", None));
        }
        Ok(Json(Paid { run }))
    }

    async fn find_out(&self, call: InDoubt<'_>) -> Result<Verdict, String> {
        let invoice: Invoice = call.parameters().map_err(|error| error.to_string())?;
        assert_eq!(invoice.number, 7);
        assert_eq!(call.tool(), "verified");
        let key = call.downstream_key("pay").to_string();
        assert_eq!(self.keys.lock().unwrap().last(), Some(&key));
        self.asked.fetch_add(1, Ordering::SeqCst);
        let other_side = *self.other_side.lock().unwrap();
        match other_side {
            OtherSide::Paid => Ok(Verdict::committed(Json(Paid { run: 100 }))),
            OtherSide::NotPaid => Ok(Verdict::NotCommitted),
            OtherSide::Away => Err("no answer".to_owned()),
            OtherSide::Panics => panic!("while it asked"),
        }
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn failing(
        &self,
        attempt: Attempt,
        Parameters(_): Parameters<Invoice>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.act(&attempt)
    }

    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn rerun(
        &self,
        attempt: Attempt,
        Parameters(_): Parameters<Invoice>,
    ) -> Result<Json<Paid>, ErrorData> {
        attempt.ensure_current().await?;
        self.act(&attempt)
    }

    #[idempotent(
        on_error = in_doubt,
        on_doubt = verify(Self::find_out),
        key_argument = "order_key",
        lease = "1m",
        heartbeat = "10s",
        in_doubt_retention = "10days"
    )]
    #[tool]
    async fn verified(
        &self,
        attempt: Attempt,
        Parameters(_): Parameters<Invoice>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.act(&attempt)
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn released(
        &self,
        attempt: Attempt,
        Parameters(_): Parameters<Invoice>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.act(&attempt)
    }

    #[idempotent(on_error = in_doubt, key = explicit)]
    #[tool]
    async fn without_key(&self, attempt: Attempt) -> Result<String, ErrorData> {
        attempt.ensure_current().await?;
        assert_eq!((attempt.token(), attempt.number()), (None, 1));
        let current = Attempt::current()?;
        let key = attempt.downstream_key("pay");
        assert_eq!(key, current.downstream_key("pay"));
        Ok(key.to_string())
    }

    /// Waits until it may go on, or its token fires.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn watching(&self, attempt: Attempt, ct: CancellationToken) -> Result<String, ErrorData> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        tokio::select! {
            () = ct.cancelled() => {
                self.fired.add_permits(1);
                assert!(attempt.is_lost());
                // Nothing was sent.
                attempt.ensure_current().await.map_err(NotExecuted::mark)?;
                Ok("went on".into())
            }
            permit = self.gate.acquire() => {
                permit.unwrap().forget();
                Ok("done".into())
            }
        }
    }
}

async fn pay(client: &Client, tool: &'static str) -> Value {
    keyed(client, tool, json!({ "number": 7 })).await
}

fn run_of(answer: &Value) -> u64 {
    answer["result"]["structuredContent"]["run"]
        .as_u64()
        .unwrap_or_else(|| panic!("no result: {answer}"))
}

fn is_replay(answer: &Value) -> bool {
    answer["result"]["_meta"]
        .get("io.github.mcp-idempotent/replayed")
        .is_some()
}

fn assert_unknown(answer: &Value, action: &str) {
    let data = &answer["error"]["data"];
    assert_eq!(data["type"], "idempotency_outcome_unknown", "{answer}");
    assert_eq!(data["outcome"], "unknown", "{answer}");
    assert_eq!(data["action"], action, "{answer}");
}

fn keys(server: &Server) -> Vec<String> {
    server.keys.lock().unwrap().clone()
}

#[tokio::test]
async fn a_call_in_doubt_stays_so_where_nothing_else_is_said() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    assert_eq!(
        pay(&client, "failing").await["error"]["message"],
        "timed out"
    );
    for _ in 0..3 {
        assert_unknown(&pay(&client, "failing").await, "ask_operator");
    }
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_call_in_doubt_runs_again_where_a_repeat_is_safe_and_passes_the_same_key_on() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    for _ in 0..2 {
        assert_eq!(pay(&client, "rerun").await["error"]["message"], "timed out");
    }
    *server.fails.lock().unwrap() = false;
    let third = pay(&client, "rerun").await;
    assert_eq!(run_of(&third), 3);
    assert!(!is_replay(&third), "{third}");
    let fourth = pay(&client, "rerun").await;
    assert_eq!(run_of(&fourth), 3);
    assert!(is_replay(&fourth), "{fourth}");
    let keys = keys(&server);
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| *key == keys[0] && key.len() == 36));
    // Another call has another one.
    let other = keyed(&client, "released", json!({ "number": 8 })).await;
    assert_eq!(
        other["error"]["data"]["type"], "idempotency_key_conflict",
        "{other}"
    );
}

#[tokio::test]
async fn a_call_in_doubt_that_the_other_side_knows_is_answered_with_its_result() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    pay(&client, "verified").await;
    for _ in 0..2 {
        assert_unknown(&pay(&client, "verified").await, "retry_same_key");
    }
    *server.other_side.lock().unwrap() = OtherSide::Panics;
    assert_unknown(&pay(&client, "verified").await, "retry_same_key");
    assert_eq!(server.asked.load(Ordering::SeqCst), 3);
    *server.other_side.lock().unwrap() = OtherSide::Paid;
    for _ in 0..2 {
        let answer = pay(&client, "verified").await;
        assert_eq!(run_of(&answer), 100);
        assert!(is_replay(&answer), "{answer}");
    }
    assert_eq!(server.asked.load(Ordering::SeqCst), 4);
    assert_eq!(server.runs(), 1);
}

#[tokio::test]
async fn a_call_in_doubt_that_the_other_side_never_got_runs() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    pay(&client, "verified").await;
    *server.other_side.lock().unwrap() = OtherSide::NotPaid;
    *server.fails.lock().unwrap() = false;
    let answer = pay(&client, "verified").await;
    assert_eq!(run_of(&answer), 2);
    assert!(!is_replay(&answer), "{answer}");
    assert_eq!(run_of(&pay(&client, "verified").await), 2);
    assert_eq!(server.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_function_that_verifies_sees_the_arguments_without_the_added_key() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    let arguments = json!({ "number": 7, "order_key": "o-1" });
    let pay = async || call(&client, params("verified", arguments.clone(), Value::Null)).await;
    pay().await;
    *server.other_side.lock().unwrap() = OtherSide::Paid;
    assert_eq!(run_of(&pay().await), 100);
}

#[tokio::test]
async fn a_released_call_passes_the_same_key_on() {
    let server = Server::new();
    let client = connect(server.clone()).await;
    for _ in 0..2 {
        pay(&client, "released").await;
    }
    let keys = keys(&server);
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_call_without_protection_has_an_attempt_too_and_new_keys_each_time() {
    let client = connect(Server::new()).await;
    let mut keys = Vec::new();
    for _ in 0..2 {
        let answer = call(&client, params("without_key", Value::Null, Value::Null)).await;
        keys.push(answer["result"]["content"][0]["text"].clone());
    }
    assert!(keys[0].is_string(), "{keys:?}");
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_handler_is_told_when_an_operator_takes_its_call() {
    tokio::time::pause();
    let server = Server::new();
    let client = Arc::new(connect(server.clone()).await);
    let running = tokio::spawn({
        let client = Arc::clone(&client);
        async move { keyed(&client, "watching", Value::Null).await }
    });
    until(|| server.runs() == 1).await;
    let mut query = RecordQuery::default();
    query.status = Some(RecordStatus::InProgress);
    let records = server.idempotency.list(&query).await.unwrap();
    assert_eq!(records.len(), 1);
    let audit = Audit::new("on-call", "it hangs").unwrap();
    let resolution = server.idempotency.committed_with("by hand".to_owned());
    let resolved = server
        .idempotency
        .resolve(
            records[0].id,
            records[0].token,
            &resolution.unwrap(),
            &audit,
        )
        .await
        .unwrap();
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    let fired = tokio::time::timeout(Duration::from_secs(3600), server.fired.acquire()).await;
    fired.expect("the token fires").unwrap().forget();
    // Whatever the handler returns then is not recorded.
    let answer = running.await.unwrap();
    assert!(answer["error"].is_object(), "{answer}");
    let retry = keyed(&client, "watching", Value::Null).await;
    assert_eq!(retry["result"]["content"][0]["text"], "by hand", "{retry}");
    assert!(is_replay(&retry), "{retry}");
    let resolved = server
        .idempotency
        .resolve(
            records[0].id,
            records[0].token,
            &Resolution::Release,
            &audit,
        )
        .await
        .unwrap();
    assert_eq!(resolved, Resolved::Changed);
    assert_eq!(server.runs(), 1);
}
