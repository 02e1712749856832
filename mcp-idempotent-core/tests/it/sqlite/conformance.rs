//! The conformance suites on a SQLite file.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordId, operator_store_conformance,
    store::sqlite::SqliteStore,
    store_conformance,
    testing::{Harness, TransactionHarness},
    transaction_store_conformance,
};
use sqlx::SqliteConnection;

use super::Database;

struct File {
    database: Database,
    store: SqliteStore,
}

async fn file() -> File {
    let database = Database::new().await;
    // One rule waits for the bound: a lease claim beside a running transaction.
    let bound = Duration::from_secs(1);
    let store = database.builder().with_wait_bound(bound).build().unwrap();
    File { database, store }
}

impl Harness for File {
    type Store = SqliteStore;

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    async fn age(&self, id: RecordId, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap();
        sqlx::query(
            "UPDATE mcp_idempotent_record SET lease_until = lease_until - ?1, \
             expires_at = expires_at - ?1, purge_at = purge_at - ?1, sweep_at = sweep_at - ?1 \
             WHERE id = ?2",
        )
        .bind(by)
        .bind(id.as_bytes().as_slice())
        .execute(self.store.pool())
        .await
        .unwrap();
    }
}

impl TransactionHarness for File {
    async fn write<'c>(&'c self, connection: &'c mut SqliteConnection) {
        sqlx::query("INSERT INTO payment (note) VALUES ('effect')")
            .execute(connection)
            .await
            .unwrap();
    }

    async fn effects(&self) -> u64 {
        self.database.payments().await.len() as u64
    }
}

mod lease {
    use super::*;

    store_conformance!(file());
}

mod transaction {
    use super::*;

    transaction_store_conformance!(file());
}

mod operator {
    use super::*;

    operator_store_conformance!(file());
}
