use std::{
    str::FromStr as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_tower::store::postgres::{PostgresStore, PostgresStoreBuilder};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{Database, Stored, unique};

/// A schema of `DATABASE_URL`.
#[derive(Debug, Clone)]
pub struct Postgres {
    schema: String,
    address: String,
    outside: PgPool,
    pools: Arc<Mutex<Vec<PgPool>>>,
}

/// The database that the tests were given.
///
/// # Panics
///
/// There is none: a test that needs it fails, it is not left out.
pub fn options() -> PgConnectOptions {
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
        panic!(
            "these tests need Postgres: run them with tests/run, or set DATABASE_URL to a database in which they may create schemas and roles"
        )
    });
    PgConnectOptions::from_str(&url).expect("DATABASE_URL is a Postgres URL")
}

impl Postgres {
    /// In another database than that of `DATABASE_URL`.
    pub async fn create_in(url: &str) -> Self {
        let database = Self::connect(url, unique("e2e"));
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA {}", database.schema)))
            .execute(&database.outside)
            .await
            .expect("the database answers");
        database
            .builder(database.outside.clone())
            .build()
            .unwrap()
            .migrate()
            .await
            .unwrap();
        database
            .execute("CREATE TABLE effects (name text NOT NULL)")
            .await;
        database
    }

    fn connect(url: &str, schema: String) -> Self {
        let options = PgConnectOptions::from_str(url)
            .expect("a Postgres URL")
            .options([("search_path", &schema)]);
        Self {
            address: format!("{schema} {url}"),
            schema,
            outside: PgPoolOptions::new()
                .max_connections(2)
                .connect_lazy_with(options),
            pools: Arc::default(),
        }
    }

    pub fn schema(&self) -> &str {
        &self.schema
    }

    pub const fn outside(&self) -> &PgPool {
        &self.outside
    }

    /// How connections of this test are made: unqualified names are those of its schema.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::clone(&self.outside.connect_options())
    }

    /// A pool whose connections run `set_up` first.
    pub fn pool_set_up_by(&self, connections: u32, set_up: impl Into<String>) -> PgPool {
        let set_up = set_up.into();
        PgPoolOptions::new()
            .max_connections(connections)
            .after_connect(move |connection, _| {
                let set_up = set_up.clone();
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(set_up))
                        .execute(connection)
                        .await
                        .map(drop)
                })
            })
            .connect_lazy_with(self.options())
    }

    /// A pool that [`close`](Database::close) closes.
    pub fn pool(&self, options: PgConnectOptions, connections: u32) -> PgPool {
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(Duration::from_secs(5))
            .connect_lazy_with(options);
        self.pools.lock().unwrap().push(pool.clone());
        pool
    }

    /// Settings of a store on this schema.
    pub fn builder(&self, pool: PgPool) -> PostgresStoreBuilder {
        PostgresStore::builder(pool).with_schema(&self.schema)
    }
}

impl Database for Postgres {
    type Connection = PgConnection;
    type Store = PostgresStore;

    const NAME: &'static str = "postgres";
    const DROP_RECORDS: &'static str = "DROP TABLE records";
    const CLOCK: &'static str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    const EXPIRY: &'static str = "SELECT (extract(epoch FROM expires_at) * 1000000)::bigint \
         FROM records WHERE labels NOT LIKE 'mcp-idempotent/secret%'";

    async fn create() -> Self {
        drop(options());
        Self::create_in(&std::env::var("DATABASE_URL").unwrap()).await
    }

    fn store_that_waits(&self, connections: u32, bound: Duration) -> PostgresStore {
        let pool = self.pool(self.options(), connections);
        self.builder(pool)
            .with_acquire_timeout(bound)
            .build()
            .unwrap()
    }

    fn store_for_lease(&self, connections: u32, _: Duration) -> PostgresStore {
        self.store(connections)
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    async fn open(address: &str) -> Self {
        let (schema, url) = address.split_once(' ').unwrap();
        Self::connect(url, schema.to_owned())
    }

    fn run<'c>(
        connection: &'c mut PgConnection,
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
        let rows: Vec<(i16, bool)> =
            sqlx::query_as("SELECT state, response IS NOT NULL FROM records WHERE labels NOT LIKE 'mcp-idempotent/secret%' ORDER BY coalesce(created_at, completed_at)")
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
        let by = format!("interval '{} microseconds'", by.as_micros());
        self.execute(&format!(
            "UPDATE records SET created_at = created_at - {by}, lease_until = lease_until - {by}, \
             completed_at = completed_at - {by}, expires_at = expires_at - {by}, \
             purge_at = purge_at - {by}"
        ))
        .await;
    }

    async fn close(&self, _: &PostgresStore) {
        let pools = std::mem::take(&mut *self.pools.lock().unwrap());
        for pool in pools {
            pool.close().await;
        }
    }
}
