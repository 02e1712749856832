use std::{path::PathBuf, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mcp_idempotent_tower::store::sqlite::{SqliteStore, SqliteStoreBuilder};
use sqlx::{
    AssertSqlSafe, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tempfile::TempDir;

use super::{Database, Stored};

/// A file in a directory of its own.
#[derive(Debug, Clone)]
pub struct Sqlite {
    path: PathBuf,
    outside: SqlitePool,
    /// Removed with the last clone.
    _directory: Option<Arc<TempDir>>,
}

impl Sqlite {
    fn connect(path: PathBuf, directory: Option<Arc<TempDir>>) -> Self {
        Self {
            outside: SqlitePoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options(&path)),
            path,
            _directory: directory,
        }
    }

    pub const fn outside(&self) -> &SqlitePool {
        &self.outside
    }

    /// Settings of a store on this file.
    pub fn builder(&self, connections: u32) -> SqliteStoreBuilder {
        let pool = SqlitePoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(options(&self.path));
        SqliteStore::builder(pool)
    }
}

fn options(path: &PathBuf) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
}

impl Database for Sqlite {
    type Connection = SqliteConnection;
    type Store = SqliteStore;

    const NAME: &'static str = "sqlite";
    const DROP_RECORDS: &'static str = "DROP TABLE mcp_idempotent_record";
    // To the millisecond, as the store's own.
    const CLOCK: &'static str =
        "SELECT CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000";
    const EXPIRY: &'static str =
        "SELECT expires_at FROM mcp_idempotent_record WHERE tool <> 'mcp-idempotent/secret'";

    async fn create() -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("records.db");
        let store = SqliteStore::open(&path).await.unwrap();
        let database = Self::connect(path, Some(Arc::new(directory)));
        database
            .execute("CREATE TABLE effects (name TEXT NOT NULL)")
            .await;
        store.close().await;
        database
    }

    fn store_that_waits(&self, connections: u32, bound: Duration) -> SqliteStore {
        self.builder(connections)
            .with_wait_bound(bound)
            .build()
            .unwrap()
    }

    fn store_for_lease(&self, connections: u32, lease: Duration) -> SqliteStore {
        let limit = SqliteStoreBuilder::DEFAULT_TRANSACTION_LIMIT.min(lease / 4);
        self.builder(connections)
            .with_transaction_limit(limit)
            .build()
            .unwrap()
    }

    fn address(&self) -> String {
        self.path.to_str().unwrap().to_owned()
    }

    async fn open(address: &str) -> Self {
        Self::connect(address.into(), None)
    }

    fn run<'c>(
        connection: &'c mut SqliteConnection,
        sql: &'c str,
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        Box::pin(async move {
            sqlx::raw_sql(AssertSqlSafe(sql))
                .execute(connection)
                .await
                .map(drop)
        })
    }

    async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.outside)
            .await
            .unwrap();
    }

    async fn integer(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql))
            .fetch_one(&self.outside)
            .await
            .unwrap()
    }

    async fn effects(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT name FROM effects ORDER BY name")
            .fetch_all(&self.outside)
            .await
            .unwrap()
    }

    async fn records(&self) -> Vec<Stored> {
        let rows: Vec<(i64, bool)> = sqlx::query_as(
            "SELECT state, response IS NOT NULL FROM mcp_idempotent_record \
             WHERE tool <> 'mcp-idempotent/secret' ORDER BY created_at",
        )
        .fetch_all(&self.outside)
        .await
        .unwrap();
        rows.into_iter()
            .map(|row| match row {
                (0, _) => Stored::InProgress,
                (1, true) => Stored::Completed,
                (1, false) => Stored::TooLarge,
                (2, _) => Stored::InDoubt,
                (4, _) => Stored::Released,
                (_, _) => Stored::Tombstone,
            })
            .collect()
    }

    async fn age(&self, by: Duration) {
        let by = by.as_micros();
        self.execute(&format!(
            "UPDATE mcp_idempotent_record SET created_at = created_at - {by}, \
             lease_until = lease_until - {by}, completed_at = completed_at - {by}, \
             expires_at = expires_at - {by}, purge_at = purge_at - {by}, sweep_at = sweep_at - {by}"
        ))
        .await;
    }

    async fn close(&self, store: &SqliteStore) {
        store.close().await;
    }
}
