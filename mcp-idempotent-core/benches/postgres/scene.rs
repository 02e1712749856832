//! Tables, connections and engines, and the calls that are compared.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_idempotent_core::{
    Engine,
    store::postgres::{PostgresStore, PostgresStoreBuilder},
};
use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, PgPool, Postgres, Transaction,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::sync::Mutex;

use crate::call::{
    ARGUMENTS, EFFECT, expect_executed, fresh_key, in_transaction, request, under_lease,
};

const INSERT: &str = "INSERT INTO effects (what) VALUES ($1)";
const SELECT: &str = "SELECT response FROM results WHERE id = $1";

pub(crate) struct Scene {
    /// What a user has: sqlx's own settings, but for the size.
    pub(crate) pool: PgPool,
    /// Kept by one caller who always has it at hand.
    hot: Mutex<PgConnection>,
    /// On the store's own connections.
    pub(crate) own: Engine<PostgresStore>,
    /// On the user's pool.
    pub(crate) pooled: Engine<PostgresStore>,
    /// On the user's pool, and looks up before it begins.
    pub(crate) looking_first: Engine<PostgresStore>,
}

impl Scene {
    /// Of the user's pool as well as of the store.
    pub(crate) const CONNECTIONS: u32 = 16;

    pub(crate) async fn new(options: PgConnectOptions, schema: &str) -> Arc<Self> {
        let pool = PgPoolOptions::new()
            .max_connections(Self::CONNECTIONS)
            .connect_with(options.clone())
            .await
            .expect("the server answers");
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS effects (what bytea NOT NULL);
             CREATE TABLE IF NOT EXISTS results (id bytea PRIMARY KEY, response bytea);
             INSERT INTO results SELECT decode(repeat('07', 32), 'hex'), decode(repeat('72', 200), 'hex')
             ON CONFLICT DO NOTHING",
        )
        .execute(&pool)
        .await
        .expect("we own the database");
        let hot = PgConnection::connect_with(&options)
            .await
            .expect("the server answers");
        let engine = |builder: PostgresStoreBuilder| {
            let store = builder.with_schema(schema).build().expect("a valid schema");
            Engine::new("benchmarks", store)
        };
        let on_pool = || PostgresStore::builder(pool.clone());
        let own = PostgresStore::builder_with(options).with_connections(Self::CONNECTIONS);
        let scene = Self {
            own: engine(own),
            pooled: engine(on_pool()),
            looking_first: engine(on_pool().with_lookup_first(true)),
            hot: Mutex::new(hot),
            pool,
        };
        let store = scene.pooled.store();
        store.migrate().await.expect("we own the database");
        Arc::new(scene)
    }

    /// Waits until the pool has its connections back, which is nobody's time: sqlx pings a
    /// connection on its way back. Within a row of calls that ping is in the way of the next call,
    /// and counts.
    pub(crate) async fn settle(&self) {
        let start = Instant::now();
        while self.pool.num_idle() < self.pool.size() as usize {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "a connection is missing"
            );
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// The time of one of `calls`, one after the other.
    pub(crate) async fn each(&self, calls: u32, call: impl AsyncFn()) -> Duration {
        let time = crate::paired::each(calls, call).await;
        self.settle().await;
        time
    }

    /// What the caller of each waits, if the connections have come to rest before it: neither the pool's
    /// ping nor a replay's ROLLBACK is on its way any more.
    pub(crate) async fn each_rested(&self, calls: u32, call: impl AsyncFn()) -> Duration {
        const REST: Duration = Duration::from_millis(2);
        let mut time = Duration::ZERO;
        for _ in 0..calls {
            self.settle().await;
            tokio::time::sleep(REST).await;
            time += crate::paired::each(1, &call).await;
        }
        time / calls
    }

    /// What a user would write anyway.
    pub(crate) async fn bare(&self) {
        bare(self.pool.begin().await.expect("begin")).await;
    }

    /// The same with nothing of a pool's work.
    pub(crate) async fn bare_hot(&self) {
        let mut connection = self.hot.lock().await;
        bare(connection.begin().await.expect("begin")).await;
    }

    pub(crate) async fn bare_select(&self) {
        let response: Vec<u8> = sqlx::query_scalar(SELECT)
            .bind([7_u8; 32].as_slice())
            .fetch_one(&self.pool)
            .await
            .expect("the row");
        assert_eq!(response.len(), 200);
    }

    /// Fills the records up with copies of one that a call has made.
    pub(crate) async fn fill(&self, schema: &str, records: u32) {
        first_call(&self.own).await;
        let columns: Vec<String> = sqlx::query_scalar(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = ($1 || '.records')::regclass \
             AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        )
        .bind(schema)
        .fetch_all(&self.pool)
        .await
        .expect("the table's columns");
        let values: Vec<String> = columns
            .iter()
            .map(|column| match column.as_str() {
                "id" => "sha256(convert_to(n::text, 'UTF8'))".to_owned(),
                // In the order in which they were made, as true ones are.
                "expires_at" | "purge_at" => format!("r.{column} + n * interval '1 millisecond'"),
                other => format!("r.{other}"),
            })
            .collect();
        let (columns, values) = (columns.join(", "), values.join(", "));
        for sql in [
            format!(
                "INSERT INTO {schema}.records ({columns}) SELECT {values} \
                 FROM (SELECT * FROM {schema}.records WHERE labels LIKE 'transfer%' LIMIT 1) r, \
                 generate_series(1, {records}) n"
            ),
            format!("VACUUM ANALYZE {schema}.records"),
            "CHECKPOINT".to_owned(),
        ] {
            sqlx::query(AssertSqlSafe(sql))
                .execute(&self.pool)
                .await
                .expect("we own the database");
        }
    }
}

async fn bare(mut transaction: Transaction<'_, Postgres>) {
    sqlx::query(INSERT)
        .bind(EFFECT.as_slice())
        .execute(&mut *transaction)
        .await
        .expect("the effect");
    transaction.commit().await.expect("commit");
}

/// A call in transaction mode with a key of its own.
pub(crate) async fn first_call(engine: &Engine<PostgresStore>) {
    let request = request(engine, &fresh_key(), &ARGUMENTS);
    expect_executed(write_in(engine, request).await);
}

pub(crate) async fn lease_call(engine: &Engine<PostgresStore>) {
    let request = request(engine, &fresh_key(), &ARGUMENTS);
    expect_executed(under_lease(engine, request).await);
}

pub(crate) async fn write_in(
    engine: &Engine<PostgresStore>,
    request: mcp_idempotent_core::Request<'_>,
) -> mcp_idempotent_core::Answer {
    in_transaction(engine, request, |connection| {
        Box::pin(async move {
            sqlx::query(INSERT)
                .bind(EFFECT.as_slice())
                .execute(connection)
                .await
                .expect("the effect");
        })
    })
    .await
}

/// The cost of one call where `callers` call at once, `calls` each: the whole time over all calls.
pub(crate) async fn crowd<F>(
    scene: &Arc<Scene>,
    callers: u32,
    calls: u32,
    call: impl Fn(Arc<Scene>) -> F,
) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = Instant::now();
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let futures: Vec<_> = (0..calls).map(|_| call(Arc::clone(scene))).collect();
            tokio::spawn(async move {
                for future in futures {
                    future.await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no caller panics");
    }
    start.elapsed() / (callers * calls)
}
