//! Transaction mode under the layer, on a real SQLite file.

use std::{collections::HashMap, sync::Arc, time::Duration};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, KeyRequirement, LayeredServer, OnError, ServerExt as _,
    SqliteStore, ToolService, Tx, layer::Rule,
};
use rmcp::{
    ErrorData, Json, ServerHandler,
    handler::server::{
        common::FromContextPart as _,
        router::tool::{AsyncTool, ToolBase, ToolRoute},
        tool::{ToolCallContext, ToolRouter, schema_for_input},
        wrapper::Parameters,
    },
    model::{CallToolResult, Tool},
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tower::timeout::TimeoutLayer;

use super::{key, number, refusal};
use crate::client::{Client, call, connect, params};

#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    number: i64,
}

#[derive(Clone)]
struct Ledger {
    store: SqliteStore,
    /// What holds the transaction beyond its call lets go with a permit of this.
    let_go: Arc<Semaphore>,
    tool_router: ToolRouter<Self>,
}

async fn insert(tx: &mut Tx<SqliteStore>, amount: i64) -> Receipt {
    let number = sqlx::query_scalar("INSERT INTO charge (amount) VALUES (?) RETURNING number")
        .bind(amount)
        .fetch_one(&mut **tx)
        .await
        .unwrap();
    Receipt { number }
}

#[tool_router]
impl Ledger {
    #[tool]
    async fn charge(
        &self,
        mut tx: Tx<SqliteStore>,
        Parameters(charge): Parameters<Charge>,
    ) -> Json<Receipt> {
        Json(insert(&mut tx, charge.amount).await)
    }

    #[tool]
    async fn charge_slowly(
        &self,
        mut tx: Tx<SqliteStore>,
        Parameters(charge): Parameters<Charge>,
    ) -> Json<Receipt> {
        let receipt = insert(&mut tx, charge.amount).await;
        self.let_go.acquire().await.unwrap().forget();
        Json(receipt)
    }

    #[tool]
    async fn charge_and_fail(&self, mut tx: Tx<SqliteStore>) -> Result<String, String> {
        Err(insert(&mut tx, 1).await.number.to_string())
    }

    #[tool]
    async fn charge_and_panic(&self, mut tx: Tx<SqliteStore>) -> String {
        panic!("{}", insert(&mut tx, 1).await.number)
    }

    #[tool]
    async fn charge_in_a_savepoint(&self, mut tx: Tx<SqliteStore>) -> Json<Receipt> {
        use sqlx::Connection as _;
        let mut savepoint = tx.begin().await.unwrap();
        sqlx::query("INSERT INTO charge (amount) VALUES (1)")
            .execute(&mut *savepoint)
            .await
            .unwrap();
        savepoint.rollback().await.unwrap();
        Json(insert(&mut tx, 2).await)
    }

    #[tool]
    async fn take_twice(&self, _one: Tx<SqliteStore>, _two: Tx<SqliteStore>) -> String {
        "took two".into()
    }

    #[tool]
    async fn never_take(&self) -> Result<String, ErrorData> {
        Ok("did not".into())
    }

    #[tool]
    async fn keep(&self, mut tx: Tx<SqliteStore>) -> String {
        insert(&mut tx, 1).await;
        let let_go = Arc::clone(&self.let_go);
        tokio::spawn(async move {
            let_go.acquire().await.unwrap().forget();
            insert(&mut tx, 2).await;
        });
        "kept".into()
    }

    #[tool(annotations(read_only_hint = true))]
    async fn count(&self) -> Result<Json<Receipt>, ErrorData> {
        Ok(Json(Receipt {
            number: self.charges().await,
        }))
    }
}

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
        let schema = schema_for_input::<Charge>().unwrap();
        let dynamic = Tool::new("dynamic_charge", "Charges.", schema);
        let tool_router = Self::tool_router()
            .with_async_tool::<TypedCharge>()
            .with_route(ToolRoute::new_dyn(
                dynamic,
                |mut context: ToolCallContext<'_, Self>| {
                    Box::pin(async move {
                        let mut tx = Tx::<SqliteStore>::from_context_part(&mut context)?;
                        let receipt = insert(&mut tx, 1).await;
                        let result = CallToolResult::structured(json!(receipt));
                        Ok(result.into())
                    })
                },
            ));
        Self {
            store,
            let_go: Arc::new(Semaphore::new(0)),
            tool_router,
        }
    }

    async fn charges(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM charge")
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    fn behind(self, rule: Rule<SqliteStore>) -> LayeredServer<Self, impl ToolService> {
        let idempotency = Idempotency::new("ledger", self.store.clone());
        self.idempotent(IdempotencyLayer::new(idempotency, rule).unwrap())
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Ledger {}

/// A tool that is given no context.
struct TypedCharge;

impl ToolBase for TypedCharge {
    type Parameter = Charge;
    type Output = Receipt;
    type Error = ErrorData;

    fn name() -> std::borrow::Cow<'static, str> {
        "typed_charge".into()
    }
}

impl AsyncTool<Ledger> for TypedCharge {
    async fn invoke(_: &Ledger, charge: Charge) -> Result<Receipt, ErrorData> {
        let mut tx = Tx::<SqliteStore>::current()?;
        Ok(insert(&mut tx, charge.amount).await)
    }
}

fn charge() -> Value {
    json!({ "amount": 7 })
}

async fn keyed(client: &Client, tool: &'static str) -> Value {
    call(client, params(tool, charge(), key("k"))).await
}

#[tokio::test]
async fn record_and_effect_commit_together_and_the_retry_gets_the_result() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    for _ in 0..3 {
        assert_eq!(number(&keyed(&client, "charge").await), 1);
    }
    assert_eq!(ledger.charges().await, 1);
    // Without a key the call is not protected, and still has its transaction.
    let answer = call(&client, params("charge", charge(), Value::Null)).await;
    assert_eq!(number(&answer), 2);
    assert_eq!(ledger.charges().await, 2);
}

#[tokio::test]
async fn every_kind_of_tool_can_take_the_transaction() {
    for tool in ["charge", "typed_charge", "dynamic_charge"] {
        let directory = TempDir::new().unwrap();
        let ledger = Ledger::open(&directory).await;
        let client = connect(ledger.clone().behind(Rule::transaction())).await;
        assert_eq!(number(&keyed(&client, tool).await), 1, "{tool}");
        assert_eq!(number(&keyed(&client, tool).await), 1, "{tool}");
        assert_eq!(ledger.charges().await, 1, "{tool}");
    }
}

#[tokio::test]
async fn the_effect_of_an_error_or_a_panic_is_rolled_back() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = call(&client, params("charge_and_fail", Value::Null, key("f"))).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let answer = call(&client, params("charge_and_panic", Value::Null, key("p"))).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_handler_panicked", "not_committed")
    );
    assert_eq!(ledger.charges().await, 0);

    let rule = Rule::transaction().on_error(OnError::Commit);
    let client = connect(ledger.clone().behind(rule)).await;
    let answer = call(&client, params("charge_and_fail", Value::Null, key("c"))).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_nested_transaction_is_a_savepoint() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = keyed(&client, "charge_in_a_savepoint").await;
    number(&answer);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn taking_the_transaction_twice_is_an_error_that_says_so() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let client = connect(ledger.clone().behind(Rule::transaction())).await;
    let answer = keyed(&client, "take_twice").await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_misconfigured", "not_committed")
    );
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("twice"), "{message}");
}

#[tokio::test]
async fn taking_a_transaction_where_none_is_open_is_an_error_that_says_so() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    for client in [
        connect(ledger.clone()).await,
        connect(ledger.clone().behind(Rule::untouched())).await,
        connect(ledger.clone().behind(Rule::lease(OnError::InDoubt))).await,
    ] {
        for tool in ["charge", "typed_charge", "dynamic_charge"] {
            let answer = call(&client, params(tool, charge(), key(tool))).await;
            assert_eq!(
                refusal(&answer),
                ("idempotency_misconfigured", "not_committed")
            );
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("Rule::transaction()"), "{message}");
        }
    }
    assert_eq!(ledger.charges().await, 0);
}

#[tokio::test]
async fn a_tool_that_never_takes_the_transaction_is_answered_with_an_error() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let rule = Rule::transaction().on_error(OnError::Record);
    let client = connect(ledger.clone().behind(rule)).await;
    for _ in 0..2 {
        let answer = call(&client, params("never_take", Value::Null, key("k"))).await;
        assert_eq!(refusal(&answer), ("idempotency_misconfigured", "unknown"));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("without having taken it"), "{message}");
    }
}

#[tokio::test]
async fn a_transaction_that_is_still_held_is_not_committed() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let server = ledger.clone().behind(Rule::transaction());
    let client = connect(server).await;
    let answer = call(&client, params("keep", Value::Null, key("k"))).await;
    assert_eq!(refusal(&answer), ("idempotency_outcome_unknown", "unknown"));
    ledger.let_go.add_permits(1);
    // What was written before and after is rolled back, and the writer is free again.
    assert_eq!(number(&keyed_as(&client, "charge", "other").await), 1);
    assert_eq!(ledger.charges().await, 1);
}

async fn keyed_as(client: &Client, tool: &'static str, as_key: &str) -> Value {
    call(client, params(tool, charge(), key(as_key))).await
}

#[tokio::test]
async fn a_tool_that_only_reads_needs_no_transaction() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let rule = Rule::transaction().key(KeyRequirement::Derived);
    let client = connect(ledger.clone().behind(rule)).await;
    for meta in [Value::Null, key("k"), key("k")] {
        let answer = call(&client, params("count", Value::Null, meta)).await;
        assert_eq!(number(&answer), 0);
    }
    assert_eq!(number(&keyed_as(&client, "charge", "c").await), 1);
    let answer = call(&client, params("count", Value::Null, Value::Null)).await;
    assert_eq!(number(&answer), 1);
    let replay = call(&client, params("count", Value::Null, key("k"))).await;
    assert_eq!(number(&replay), 0);
}

#[tokio::test]
async fn a_caller_that_gives_up_does_not_roll_the_effect_back() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let patient = ledger.clone().behind(Rule::transaction());
    let hasty = patient
        .clone()
        .layered(TimeoutLayer::new(Duration::from_millis(50)));
    let hasty = connect(hasty).await;
    let answer = keyed(&hasty, "charge_slowly").await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    ledger.let_go.add_permits(1);
    let patient = connect(patient).await;
    assert_eq!(number(&keyed(&patient, "charge_slowly").await), 1);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn a_timeout_below_rolls_the_effect_back_and_frees_the_key() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let idempotency = Idempotency::new("ledger", ledger.store.clone());
    let layer = IdempotencyLayer::new(idempotency, Rule::transaction()).unwrap();
    let server = ledger
        .clone()
        .layered(TimeoutLayer::new(Duration::from_millis(50)))
        .idempotent(layer);
    let client = connect(server).await;
    let answer = keyed(&client, "charge_slowly").await;
    assert_eq!(refusal(&answer), ("call_timed_out", "unknown"));
    assert_eq!(ledger.charges().await, 0);
    ledger.let_go.add_permits(1);
    number(&keyed(&client, "charge_slowly").await);
    assert_eq!(ledger.charges().await, 1);
}

#[tokio::test]
async fn two_servers_on_one_file_have_as_many_effects_as_there_are_keys() {
    let directory = TempDir::new().unwrap();
    let ledger = Ledger::open(&directory).await;
    let other = Ledger {
        store: SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap(),
        ..ledger.clone()
    };
    let one = Arc::new(connect(ledger.clone().behind(Rule::transaction())).await);
    let two = Arc::new(connect(other.behind(Rule::transaction())).await);
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let client = Arc::clone(if n % 2 == 0 { &one } else { &two });
            let as_key = format!("key-{}", n % 67);
            tokio::spawn(async move {
                let answer = keyed_as(&client, "charge", &as_key).await;
                (as_key, number(&answer))
            })
        })
        .collect();
    let mut numbers = HashMap::new();
    for call in calls {
        let (as_key, number) = call.await.unwrap();
        assert_eq!(*numbers.entry(as_key).or_insert(number), number);
    }
    assert_eq!(numbers.len(), 67);
    assert_eq!(ledger.charges().await, 67);
}
