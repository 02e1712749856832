//! Statements that pass by the transaction of their call are noticed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mcp_idempotent_tower::{CallPool, Idempotency, SqliteStore, Strays, idempotent};
use rmcp::{tool, tool_router};
use serde_json::Value;
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use crate::client::{call, connect, params};

#[derive(Clone)]
struct Shop {
    idempotency: Idempotency<SqliteStore>,
    plain: SqlitePool,
    pool: CallPool<SqliteStore>,
}

#[tool_router(server_handler)]
impl Shop {
    async fn count_in(&self, plain: bool) -> String {
        let count = sqlx::query_scalar::<_, i64>("SELECT 7");
        let count = if plain {
            count.fetch_one(&self.plain).await
        } else {
            count.fetch_one(&self.pool).await
        };
        count.unwrap().to_string()
    }

    #[idempotent]
    #[tool]
    async fn strays(&self, tx: &mut SqliteConnection) -> String {
        sqlx::query("SELECT 1").execute(tx).await.unwrap();
        self.count_in(true).await
    }

    #[idempotent(transaction)]
    #[tool]
    async fn strays_beside_the_call_pool(&self) -> String {
        self.count_in(false).await;
        self.count_in(true).await
    }

    #[idempotent(transaction)]
    #[tool]
    async fn keeps_to_the_call_pool(&self) -> String {
        self.count_in(false).await
    }

    #[idempotent(on_error = release)]
    #[tool]
    async fn under_a_lease(&self) -> String {
        self.count_in(true).await
    }
}

#[tokio::test]
async fn a_plain_pool_is_noticed_in_a_call_with_a_transaction_and_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let (options, strays) = Strays::watch(SqlitePoolOptions::new());
    let plain = options
        .connect_with(SqliteConnectOptions::new().filename(&file))
        .await
        .unwrap();
    let shop = Shop {
        idempotency: Idempotency::for_stdio("shop", store.clone()).unwrap(),
        pool: CallPool::new(store, plain.clone()),
        plain,
    };
    let client = connect(shop.clone()).await;
    shop.count_in(true).await;
    shop.count_in(false).await;
    for (tool, expected) in [
        ("under_a_lease", 0),
        ("keeps_to_the_call_pool", 0),
        ("strays", 1),
        ("strays_beside_the_call_pool", 2),
    ] {
        let answer = call(&client, params(tool, Value::Null, Value::Null)).await;
        assert_eq!(answer["result"]["content"][0]["text"], "7", "{answer}");
        assert_eq!(strays.count(), expected, "{tool}");
        let asserted = catch_unwind(AssertUnwindSafe(|| strays.assert_none()));
        assert_eq!(asserted.is_ok(), expected == 0);
    }
}

#[tokio::test]
async fn a_plain_pool_is_noticed_too_when_it_opens_its_first_connection() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let (options, strays) = Strays::watch(SqlitePoolOptions::new());
    let plain = options.connect_lazy_with(SqliteConnectOptions::new().filename(&file));
    let shop = Shop {
        idempotency: Idempotency::for_stdio("shop", store.clone()).unwrap(),
        pool: CallPool::new(store, plain.clone()),
        plain,
    };
    let client = connect(shop).await;
    call(&client, params("strays", Value::Null, Value::Null)).await;
    assert_eq!(strays.count(), 1);
}
