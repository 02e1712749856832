//! Results of an older output schema, in transaction mode: each way to take the transaction.

use mcp_idempotent_tower::{CallPool, SqliteStore, Tx};
use sqlx::SqliteConnection;
use tempfile::TempDir;

use super::*;

macro_rules! version {
    ($module:ident: $receipt:ty = $new:expr) => {
        mod $module {
            use super::*;

            #[derive(Clone)]
            pub(super) struct Ledger {
                pub(super) idempotency: Idempotency<SqliteStore>,
                pub(super) pool: CallPool<SqliteStore>,
            }

            #[tool_router(server_handler)]
            impl Ledger {
                #[idempotent]
                #[tool]
                fn borrowing(&self, _tx: &mut SqliteConnection) -> Json<$receipt> {
                    Json($new)
                }

                #[idempotent(transaction)]
                #[tool]
                async fn pooled(&self) -> Json<$receipt> {
                    let asked = sqlx::query("SELECT 1").execute(&self.pool).await;
                    asked.unwrap();
                    Json($new)
                }

                #[tool]
                fn layered(&self, _tx: Tx<SqliteStore>) -> Json<$receipt> {
                    Json($new)
                }
            }
        }
    };
}

version!(before: Receipt = Receipt { number: 1 });
version!(after: ReceiptWithName = ReceiptWithName { number: 2, name: "new".into() });

async fn send(client: &Client, tool: &'static str) -> Value {
    let key = json!({ "idempotency-key": tool });
    call(client, params(tool, Value::Null, key)).await
}

#[tokio::test]
async fn a_result_of_an_older_output_schema_is_told_and_not_replayed_in_transaction_mode() {
    let directory = TempDir::new().unwrap();
    let store = SqliteStore::open(directory.path().join("ledger.db"))
        .await
        .unwrap();
    let pool = CallPool::new(store.clone(), store.pool().clone());
    let idempotency = Idempotency::builder("ledger", store)
        .with_one_caller()
        .with_output_schemas_checked(true)
        .build()
        .unwrap();
    let layer = || IdempotencyLayer::new(idempotency.clone(), Rule::transaction()).unwrap();
    let old = before::Ledger {
        idempotency: idempotency.clone(),
        pool: pool.clone(),
    };
    let old = connect(old.idempotent(layer())).await;
    let new = after::Ledger {
        idempotency: idempotency.clone(),
        pool: pool.clone(),
    };
    let new = connect(new.idempotent(layer())).await;
    for tool in ["borrowing", "pooled", "layered"] {
        for is_replay in [false, true] {
            let answer = send(&old, tool).await;
            let meta = &answer["result"]["_meta"][REPLAYED];
            assert_eq!(meta.is_object(), is_replay, "{tool}: {answer}");
        }
        let answer = send(&new, tool).await;
        let data = &answer["error"]["data"];
        assert_eq!(data["outcome"], "committed", "{tool}: {answer}");
        let recorded = &data["result"]["structuredContent"];
        assert_eq!(*recorded, json!({ "number": 1 }), "{tool}: {answer}");
    }
}
