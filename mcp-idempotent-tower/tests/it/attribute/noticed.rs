//! What is written into the server's log about a tool that cannot be meant like this, at its first call.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use mcp_idempotent_tower::{CallPool, Idempotency, SqliteStore, idempotent};
use rmcp::{handler::server::wrapper::Parameters, schemars, tool, tool_router};
use serde_json::{Value, json};
use sqlx::SqlitePool;

use crate::client::{call, connect, params};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn times(&self, words: &str) -> usize {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log).matches(words).count()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Note {
    #[expect(dead_code, reason = "only its name matters")]
    text: String,
}

#[derive(Clone)]
struct Shop {
    idempotency: Idempotency<SqliteStore>,
    pool: CallPool<SqliteStore>,
    plain: SqlitePool,
}

#[tool_router(server_handler)]
impl Shop {
    #[idempotent(transaction)]
    #[tool]
    async fn passes_by(&self) -> String {
        sqlx::query("SELECT 1").execute(&self.plain).await.unwrap();
        "done".to_owned()
    }

    #[idempotent(transaction)]
    #[tool]
    async fn uses_it(&self) -> String {
        sqlx::query("SELECT 1").execute(&self.pool).await.unwrap();
        "done".to_owned()
    }

    #[idempotent(transaction)]
    #[tool]
    async fn fails(&self) -> Result<String, String> {
        Err("nothing to do".to_owned())
    }

    #[idempotent(on_error = release, key_argument = "key", ignore("text"))]
    #[tool]
    async fn names_its_arguments(&self, Parameters(_): Parameters<Note>) -> String {
        "done".to_owned()
    }

    #[idempotent(on_error = release, ignore("txet"))]
    #[tool]
    async fn misspells_an_argument(&self, Parameters(_): Parameters<Note>) -> String {
        "done".to_owned()
    }
}

async fn logged(tool: &'static str, arguments: Value) -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("shop.db"))
        .await
        .unwrap();
    let plain = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let client = connect(Shop {
        idempotency: Idempotency::for_stdio("shop", store.clone()).unwrap(),
        pool: CallPool::new(store, plain.clone()),
        plain,
    })
    .await;
    for key in ["a", "b"] {
        let meta = json!({ "idempotency-key": key });
        let answer = call(&client, params(tool, arguments.clone(), meta)).await;
        assert!(answer["result"]["content"].is_array(), "{answer}");
    }
    log
}

#[tokio::test]
async fn a_transaction_that_a_successful_tool_does_not_use_is_noticed_once() {
    for (tool, times) in [("passes_by", 1), ("uses_it", 0), ("fails", 0)] {
        let log = logged(tool, Value::Null).await;
        assert_eq!(log.times("without using its transaction"), times, "{tool}");
    }
}

#[tokio::test]
async fn an_option_that_names_no_argument_is_noticed_at_the_first_call() {
    for (tool, times) in [("misspells_an_argument", 1), ("names_its_arguments", 0)] {
        let log = logged(tool, json!({ "text": "x" })).await;
        let said = "name an argument that it does not have";
        assert_eq!(log.times(said), times, "{tool}");
        assert_eq!(log.times("txet"), times, "{tool}");
    }
}
