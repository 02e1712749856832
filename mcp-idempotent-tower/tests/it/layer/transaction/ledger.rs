//! A server whose tools write through the call's transaction.

use std::sync::Arc;

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, LayeredServer, ServerExt as _, SqliteStore, ToolService, Tx,
    layer::Rule,
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
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Semaphore;

#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    number: i64,
}

#[derive(Clone)]
pub(super) struct Ledger {
    pub(super) store: SqliteStore,
    /// What holds the transaction beyond its call lets go with a permit of this.
    pub(super) let_go: Arc<Semaphore>,
    pub(super) tool_router: ToolRouter<Self>,
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
    pub(super) async fn open(directory: &TempDir) -> Self {
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

    pub(super) async fn charges(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM charge")
            .fetch_one(self.store.pool())
            .await
            .unwrap()
    }

    pub(super) fn behind(self, rule: Rule<SqliteStore>) -> LayeredServer<Self, impl ToolService> {
        let idempotency = Idempotency::for_stdio("ledger", self.store.clone()).unwrap();
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
