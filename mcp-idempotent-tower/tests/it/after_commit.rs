//! What a handler wants to be done after its commit, and the hook that is told of replays.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tower::{
    AfterCommit, Idempotency, IdempotencyLayer, KeyRequirement, OnError, ReplayedCall, Scope,
    ServerExt as _, SqliteStore, Tx, idempotent, layer::Rule,
};
use rmcp::{
    ErrorData,
    handler::server::wrapper::Parameters,
    model::{CallToolResult, ContentBlock},
    tool, tool_router,
};
use serde_json::{Value, json};
use sqlx::SqliteConnection;
use tempfile::TempDir;
use tokio::{sync::Semaphore, time::timeout};

use crate::client::{Client, call, connect, params, refusal, until};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Entry {
    text: String,
}

#[derive(Clone)]
struct Ledger {
    idempotency: Idempotency<SqliteStore>,
    told: Arc<Mutex<Vec<String>>>,
    replays: Arc<Mutex<Vec<String>>>,
    /// What is told waits for a permit of this.
    go_on: Arc<Semaphore>,
    kept: Arc<Mutex<Option<AfterCommit>>>,
}

#[tool_router(server_handler)]
impl Ledger {
    async fn open(directory: &TempDir) -> Self {
        let store = SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap();
        let tables = "CREATE TABLE account (name TEXT PRIMARY KEY);
            CREATE TABLE entry (
                text TEXT,
                account TEXT REFERENCES account (name) DEFERRABLE INITIALLY DEFERRED
            )";
        sqlx::raw_sql(tables).execute(store.pool()).await.unwrap();
        let replays = Arc::<Mutex<Vec<String>>>::default();
        let seen = Arc::clone(&replays);
        let idempotency = Idempotency::builder("ledger", store)
            .with_fixed_scope("desk")
            .with_on_replay(move |call: &ReplayedCall<'_>| {
                assert_eq!(call.scope, Some(Scope::new("desk")));
                assert!(call.at.is_some() && !call.joined);
                let arguments = call.arguments.unwrap();
                assert_eq!(arguments.len(), 1, "{arguments:?}");
                let text = arguments["text"].as_str().unwrap();
                seen.lock().unwrap().push(format!("{} {text}", call.tool));
                assert_ne!(text, "panic of the hook");
            })
            .build()
            .unwrap();
        Self {
            idempotency,
            told: Arc::default(),
            replays,
            go_on: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            kept: Arc::default(),
        }
    }

    async fn entries(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM entry")
            .fetch_one(self.idempotency.store().pool())
            .await
            .unwrap()
    }

    fn told(&self) -> Vec<String> {
        self.told.lock().unwrap().clone()
    }

    fn tell(&self, after: &AfterCommit, text: &str) {
        let (told, text, go_on) = (
            Arc::clone(&self.told),
            text.to_owned(),
            Arc::clone(&self.go_on),
        );
        after.run(async move {
            go_on.acquire().await.unwrap().forget();
            told.lock().unwrap().push(text);
        });
    }

    async fn write(
        &self,
        connection: &mut SqliteConnection,
        after: &AfterCommit,
        text: &str,
    ) -> Result<CallToolResult, ErrorData> {
        // An account that there is not is found missing by the commit.
        sqlx::query("INSERT INTO entry VALUES (?1, ?2)")
            .bind(text)
            .bind((text == "refused commit").then_some("nobody"))
            .execute(&mut *connection)
            .await
            .unwrap();
        if text == "a panic of its own" {
            after.run(async { panic!("nobody hears me") });
        }
        if text == "after another" {
            self.tell(after, "another");
        }
        self.tell(after, text);
        match text {
            "error" => return Err(ErrorData::internal_error("no", None)),
            "failed" => return Ok(CallToolResult::error(vec![ContentBlock::text("no")])),
            "panic" => panic!("no"),
            "raw commit" => {
                sqlx::raw_sql("COMMIT").execute(connection).await.unwrap();
            }
            "kept" => *self.kept.lock().unwrap() = Some(after.clone()),
            _ => {}
        }
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]))
    }

    #[idempotent]
    #[tool]
    async fn annotated(
        &self,
        connection: &mut SqliteConnection,
        after: AfterCommit,
        Parameters(entry): Parameters<Entry>,
    ) -> Result<CallToolResult, ErrorData> {
        self.write(connection, &after, &entry.text).await
    }

    #[idempotent(key = explicit)]
    #[tool]
    async fn unprotected(
        &self,
        connection: &mut SqliteConnection,
        _as_a_parameter_too: AfterCommit,
        Parameters(entry): Parameters<Entry>,
    ) -> Result<CallToolResult, ErrorData> {
        let after = AfterCommit::current()?;
        self.write(connection, &after, &entry.text).await
    }

    #[tool]
    async fn plain(
        &self,
        mut tx: Tx<SqliteStore>,
        after: AfterCommit,
        Parameters(entry): Parameters<Entry>,
    ) -> Result<CallToolResult, ErrorData> {
        self.write(&mut tx, &after, &entry.text).await
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn under_a_lease(&self, after: AfterCommit) -> String {
        self.tell(&after, "a lease");
        "done".into()
    }

    #[idempotent(on_error = in_doubt, key_argument = "key")]
    #[tool]
    async fn asks_under_a_lease(&self) -> String {
        AfterCommit::current().map_or_else(|error| error.message.into(), |_| "found".to_owned())
    }

    #[tool]
    async fn plain_under_a_lease(&self, after: AfterCommit) -> String {
        self.tell(&after, "a lease");
        "done".into()
    }
}

async fn doors(ledger: &Ledger) -> [(Client, &'static str); 3] {
    let rule = Rule::transaction().with_key(KeyRequirement::Derived);
    let layer = IdempotencyLayer::new(ledger.idempotency.clone(), rule).unwrap();
    [
        (connect(ledger.clone()).await, "annotated"),
        (connect(ledger.clone()).await, "unprotected"),
        (connect(ledger.clone().idempotent(layer)).await, "plain"),
    ]
}

async fn write(client: &Client, tool: &'static str, text: &str) -> Value {
    call(client, params(tool, json!({ "text": text }), Value::Null)).await
}

/// Waits for something that a call with this text is known to do after its commit.
async fn assert_told(ledger: &Ledger, expected: &[&str]) {
    until(|| ledger.told().len() >= expected.len()).await;
    assert_eq!(ledger.told(), expected);
}

#[tokio::test]
async fn what_waits_for_the_commit_happens_once_and_not_for_a_replay() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    for (client, tool) in doors(&ledger).await {
        ledger.told.lock().unwrap().clear();
        let text = format!("{tool} once");
        for _ in 0..2 {
            write(&client, tool, &text).await;
        }
        write(&client, tool, "last").await;
        let expected = match tool {
            "unprotected" => vec![text.as_str(), text.as_str(), "last"],
            _ => vec![text.as_str(), "last"],
        };
        assert_told(&ledger, &expected).await;
    }
}

#[tokio::test]
async fn what_waits_for_the_commit_does_not_happen_without_one() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    for (client, tool) in doors(&ledger).await {
        ledger.told.lock().unwrap().clear();
        for text in ["error", "failed", "panic", "raw commit", "refused commit"] {
            write(&client, tool, text).await;
        }
        write(&client, tool, &format!("last {tool}")).await;
        assert_told(&ledger, &[&format!("last {tool}")]).await;
    }
}

#[tokio::test]
async fn what_waits_for_the_commit_happens_in_the_order_in_which_it_was_given() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    write(&client, "annotated", "after another").await;
    assert_told(&ledger, &["another", "after another"]).await;
}

#[tokio::test]
async fn a_panic_after_the_commit_changes_nothing_and_the_rest_happens() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let answer = write(&client, "annotated", "a panic of its own").await;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    assert_told(&ledger, &["a panic of its own"]).await;
    assert_eq!(ledger.entries().await, 1);
}

#[tokio::test]
async fn an_answer_does_not_wait_for_what_comes_after_the_commit_but_a_shutdown_does() {
    let directory = tempfile::tempdir().unwrap();
    let mut ledger = Ledger::open(&directory).await;
    ledger.go_on = Arc::new(Semaphore::new(0));
    let client = connect(ledger.clone()).await;
    write(&client, "annotated", "slow").await;
    assert_eq!(ledger.idempotency.running(), 1);
    assert!(ledger.told().is_empty());
    ledger.go_on.add_permits(1);
    let shutdown = ledger.idempotency.shutdown(Duration::from_secs(3600));
    let ended = timeout(Duration::from_secs(60), shutdown).await;
    ended.expect("it ends with the last").unwrap();
    assert_eq!(ledger.told(), ["slow"]);
}

#[tokio::test]
async fn after_the_call_nothing_more_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    write(&client, "annotated", "kept").await;
    let kept = ledger.kept.lock().unwrap().take().unwrap();
    ledger.tell(&kept, "too late");
    let held = Arc::new(());
    let late = Arc::clone(&held);
    kept.run(async move { drop(late) });
    assert_eq!(Arc::strong_count(&held), 1, "it is not kept either");
    write(&client, "annotated", "last").await;
    assert_told(&ledger, &["kept", "last"]).await;
}

#[tokio::test]
async fn there_is_no_commit_to_wait_for_under_a_lease() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let key = json!({ "idempotency-key": "k" });
    for _ in 0..2 {
        let asked = params("under_a_lease", Value::Null, key.clone());
        let answer = call(&client, asked).await;
        let expected = ("idempotency_misconfigured", "not_committed");
        assert_eq!(refusal(&answer), expected);
    }
    let asked = call(
        &client,
        params("asks_under_a_lease", Value::Null, Value::Null),
    );
    let text = asked.await["result"]["content"][0]["text"].to_string();
    assert!(text.contains("no transaction"), "{text}");

    // Behind the layer the body has not begun either, so nothing is in doubt.
    let rule = Rule::lease(OnError::InDoubt);
    let layer = IdempotencyLayer::new(ledger.idempotency.clone(), rule).unwrap();
    let client = connect(ledger.idempotent(layer)).await;
    for _ in 0..2 {
        let asked = params("plain_under_a_lease", Value::Null, key.clone());
        let answer = call(&client, asked).await;
        let expected = ("idempotency_misconfigured", "not_committed");
        assert_eq!(refusal(&answer), expected);
    }
}

#[tokio::test]
async fn the_hook_is_told_of_each_replay_through_both_doors_and_may_panic() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    for (client, tool) in doors(&ledger).await {
        if tool == "unprotected" {
            continue;
        }
        let text = if tool == "plain" {
            "panic of the hook"
        } else {
            "twice"
        };
        let first = write(&client, tool, text).await;
        let retry = write(&client, tool, text).await;
        let content = |answer: &Value| answer["result"]["content"].clone();
        assert_eq!(content(&retry), content(&first), "{retry}");
        let replays = std::mem::take(&mut *ledger.replays.lock().unwrap());
        assert_eq!(replays, [format!("{tool} {text}")]);
    }
    // An argument that is only there for the key is none of the tool's.
    let client = connect(ledger.clone()).await;
    for _ in 0..2 {
        let arguments = json!({ "text": "twice", "key": "k" });
        call(
            &client,
            params("asks_under_a_lease", arguments, Value::Null),
        )
        .await;
    }
    let replays = std::mem::take(&mut *ledger.replays.lock().unwrap());
    assert_eq!(replays, ["asks_under_a_lease twice"]);
}
