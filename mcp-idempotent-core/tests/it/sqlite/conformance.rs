//! The conformance suites on a SQLite file.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordId, operator_store_conformance, sql_operator_store_conformance, sql_store_conformance,
    store::sqlite::SqliteStore,
    store_conformance,
    testing::{Harness, HarnessResult, SqlHarness, TransactionHarness},
    transaction_store_conformance,
};
use sqlx::SqliteConnection;

use super::Database;

pub(super) struct File {
    database: Database,
    store: SqliteStore,
    elsewhere: SqliteStore,
}

pub(super) async fn file(connections: u32) -> File {
    let database = Database::new().await;
    let open = || {
        SqliteStore::builder(database.pool(connections))
            // Some rules wait for the bound: a lease claim beside a running transaction.
            .with_wait_bound(Duration::from_secs(1))
            .build()
            .unwrap()
    };
    let (store, elsewhere) = (open(), open());
    File {
        database,
        store,
        elsewhere,
    }
}

impl Harness for File {
    type Store = SqliteStore;

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    fn elsewhere(&self) -> &SqliteStore {
        &self.elsewhere
    }

    async fn age(&self, id: RecordId, by: Duration) -> HarnessResult {
        self.database.age(id, by).await;
        Ok(())
    }
}

impl TransactionHarness for File {
    async fn write<'c>(&'c self, connection: &'c mut SqliteConnection) -> HarnessResult {
        sqlx::query("INSERT INTO payment (note) VALUES ('effect')")
            .execute(connection)
            .await?;
        Ok(())
    }

    async fn effects(&self) -> HarnessResult<u64> {
        Ok(self.database.payments().await.len() as u64)
    }
}

impl SqlHarness for File {
    async fn run<'c>(&'c self, connection: &'c mut SqliteConnection, sql: &'static str) {
        drop(sqlx::raw_sql(sql).execute(connection).await);
    }

    async fn fail<'c>(&'c self, connection: &'c mut SqliteConnection) {
        let conflict = "INSERT INTO payment (note, code) VALUES ('a', 'A'); \
            INSERT OR ROLLBACK INTO payment (note, code) VALUES ('b', 'A')";
        self.run(connection, conflict).await;
    }

    async fn write_through_the_pool(&self) -> HarnessResult {
        sqlx::query("INSERT INTO payment (note) VALUES ('next')")
            .execute(self.store.pool())
            .await?;
        Ok(())
    }
}

mod lease {
    use super::*;

    store_conformance!(file(4));
}

mod transaction {
    use super::*;

    transaction_store_conformance!(file(4));
}

mod operator {
    use super::*;

    operator_store_conformance!(file(4));
}

mod sql {
    use super::*;

    sql_store_conformance!(file(1));
    sql_operator_store_conformance!(file(1));
}
