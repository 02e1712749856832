//! Transaction mode, on a real SQLite file.

use mcp_idempotent_tower::{Idempotency, idempotent, store::sqlite::SqliteStore};
use rmcp::{ErrorData, Json, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};
use sqlx::SqliteConnection;
use tempfile::TempDir;

use crate::client::{call, connect, keyed, params};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
    #[serde(default)]
    outcome: Outcome,
}

#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    #[default]
    Booked,
    Broken,
    Panicked,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    number: i64,
}

#[derive(Clone)]
struct Ledger {
    idempotency: Idempotency<SqliteStore>,
}

#[tool_router(server_handler)]
impl Ledger {
    async fn open(directory: &TempDir) -> Self {
        let store = SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap();
        sqlx::query(
            "CREATE TABLE charge (number INTEGER PRIMARY KEY AUTOINCREMENT, amount INTEGER)",
        )
        .execute(store.pool())
        .await
        .unwrap();
        Self {
            idempotency: Idempotency::for_stdio("ledger", store).unwrap(),
        }
    }

    async fn charges(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM charge")
            .fetch_one(self.idempotency.store().pool())
            .await
            .unwrap()
    }

    #[idempotent]
    #[tool]
    async fn charge(
        &self,
        connection: &mut SqliteConnection,
        Parameters(charge): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let number = insert(connection, charge.amount).await;
        match charge.outcome {
            Outcome::Panicked => panic!("charge {number}"),
            Outcome::Booked => Ok(Json(Receipt { number })),
            Outcome::Broken => Err(ErrorData::internal_error(number.to_string(), None)),
        }
    }

    #[idempotent]
    #[tool]
    async fn fail(&self, connection: &mut SqliteConnection) -> Result<String, String> {
        Err(insert(connection, 1).await.to_string())
    }

    #[idempotent(on_error = commit)]
    #[tool]
    async fn fail_and_commit(&self, connection: &mut SqliteConnection) -> Result<String, String> {
        Err(insert(connection, 1).await.to_string())
    }

    #[idempotent(on_error = record)]
    #[tool]
    async fn break_and_record(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<String, ErrorData> {
        let number = insert(connection, 1).await;
        Err(ErrorData::internal_error(number.to_string(), None))
    }

    #[idempotent]
    #[tool]
    fn synchronous(&self, _connection: &mut SqliteConnection) -> String {
        "did nothing".into()
    }
}

async fn insert(connection: &mut SqliteConnection, amount: i64) -> i64 {
    sqlx::query_scalar("INSERT INTO charge (amount) VALUES (?) RETURNING number")
        .bind(amount)
        .fetch_one(connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn five_identical_calls_leave_one_row() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    for _ in 0..5 {
        let answer = call(
            &client,
            params("charge", json!({ "amount": 7 }), Value::Null),
        )
        .await;
        assert_eq!(
            answer["result"]["structuredContent"]["number"], 1,
            "{answer}"
        );
    }
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_protocol_error_and_a_panic_leave_no_row_and_the_key_free() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    for (outcome, expected) in [
        ("broken", Value::Null),
        ("broken", Value::Null),
        ("panicked", json!("not_committed")),
    ] {
        let answer = keyed(
            &client,
            "charge",
            json!({ "amount": 7, "outcome": outcome }),
        )
        .await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        assert_eq!(answer["error"]["data"]["outcome"], expected, "{answer}");
        assert_eq!(ledger.charges().await, 0);
    }
    let answer = keyed(&client, "charge", json!({ "amount": 7 })).await;
    assert_eq!(
        answer["result"]["structuredContent"]["number"], 1,
        "{answer}"
    );
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_failed_result_is_rolled_back_and_kept_under_an_explicit_key() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let first = keyed(&client, "fail", Value::Null).await;
    assert_eq!(first["result"]["isError"], true, "{first}");
    let retry = keyed(&client, "fail", Value::Null).await;
    assert_eq!(retry["result"]["content"], first["result"]["content"]);
    assert!(retry["result"]["_meta"].is_object(), "{retry}");
    assert_eq!(ledger.charges().await, 0);
}

#[tokio::test]
async fn a_failed_result_commits_where_the_author_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    for _ in 0..2 {
        let answer = keyed(&client, "fail_and_commit", Value::Null).await;
        assert_eq!(answer["result"]["content"][0]["text"], "1", "{answer}");
    }
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_protocol_error_is_kept_where_the_author_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone()).await;
    let first = keyed(&client, "break_and_record", Value::Null).await;
    assert_eq!(first["error"]["message"], "1");
    // Another call takes the number that was rolled back, so a second run would say so.
    keyed(&client, "fail_and_commit", Value::Null).await;
    call(&client, params("fail_and_commit", Value::Null, Value::Null)).await;
    let retry = keyed(&client, "break_and_record", Value::Null).await;
    assert_eq!(retry, first);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn the_original_is_called_with_a_transaction_of_the_authors() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&directory).await;
    let mut transaction = ledger.idempotency.store().pool().begin().await.unwrap();
    let charge = Charge {
        amount: 7,
        outcome: Outcome::Booked,
    };
    let receipt = ledger
        .charge_unprotected(&mut transaction, Parameters(charge))
        .await
        .unwrap();
    assert_eq!(receipt.0.number, 1);
    drop(transaction);
    assert_eq!(ledger.charges().await, 0);
}

#[tokio::test]
async fn a_tool_with_a_transaction_may_be_synchronous() {
    let directory = tempfile::tempdir().unwrap();
    let client = connect(Ledger::open(&directory).await).await;
    let answer = keyed(&client, "synchronous", Value::Null).await;
    assert_eq!(
        answer["result"]["content"][0]["text"], "did nothing",
        "{answer}"
    );
}
