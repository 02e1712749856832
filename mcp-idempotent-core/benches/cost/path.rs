//! The paths, and the child that walks them.

use std::path::Path;

use futures_util::future::join_all;
use mcp_idempotent_core::{
    Answer, Engine, MemoryStore, Request, Store, TransactionStore,
    store::{postgres::PostgresStore, sqlite::SqliteStore},
};
use sqlx::{
    Connection as _, PgConnection, PgPool, SqlitePool,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::runtime::{Builder, Runtime};

use crate::call::{
    ARGUMENTS, EFFECT, expect_executed, expect_replayed, fresh_key, in_transaction, request,
    under_lease,
};

pub(crate) const WITHOUT_A_SERVER: [&str; 7] = [
    "memory: first call",
    "memory: replay",
    "sqlite: bare transaction",
    "sqlite: first call",
    "sqlite: lease mode",
    "sqlite: bare SELECT",
    "sqlite: replay",
];

pub(crate) const BESIDE_A_SERVER: [&str; 10] = [
    "postgres: bare transaction, pool",
    "postgres: bare transaction, hot",
    "postgres: first call, own",
    "postgres: first call, pool",
    "postgres: lease mode, own",
    "postgres: lease mode, pool",
    "postgres: bare SELECT, pool",
    "postgres: bare SELECT, hot",
    "postgres: replay, own",
    "postgres: replay, pool",
];

/// What a user writes who wants connections to be reused soon: sqlx's defaults, and as many
/// connections as the store has of its own.
const POOL: u32 = 16;

const INSERT: &str = "INSERT INTO effects (what) VALUES ($1)";
const SELECT: &str = "SELECT response FROM results WHERE id = $1";

/// Makes calls on one path. `target` is the server's URL, if there is one.
pub(crate) fn make(path: &str, calls: u32, target: &str) {
    let (place, rest) = path.split_once(": ").expect("a path");
    let runtime = runtime();
    // A pool begins to live when it is made.
    let _entered = runtime.enter();
    match place {
        "memory" => {
            let engine = Engine::new("benchmarks", MemoryStore::new());
            lease_calls(&runtime, &engine, rest, calls);
        }
        "sqlite" => sqlite(&runtime, rest, calls),
        _ => postgres(&runtime, rest, calls, target),
    }
}

/// With one thread, so that no work is stolen and the counts hardly change.
fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Makes the calls, one after the other. Before that a few rounds of as many at once as there are
/// connections, so that each of those is open, and knows what is said on it.
fn repeat(runtime: &Runtime, calls: u32, call: impl AsyncFn()) {
    runtime.block_on(async {
        for _ in 0..4 {
            join_all((0..POOL).map(|_| call())).await;
        }
        for _ in 0..calls {
            call().await;
        }
    });
}

fn lease_calls<S: Store>(runtime: &Runtime, engine: &Engine<S>, what: &str, calls: u32) {
    let key = fresh_key();
    let replays = what == "replay";
    if replays {
        runtime.block_on(under_lease(engine, request(engine, &key, &ARGUMENTS)));
    }
    repeat(runtime, calls, async || {
        if replays {
            expect_replayed(under_lease(engine, request(engine, &key, &ARGUMENTS)).await);
        } else {
            let request = request(engine, &fresh_key(), &ARGUMENTS);
            expect_executed(under_lease(engine, request).await);
        }
    });
}

fn sqlite(runtime: &Runtime, what: &str, calls: u32) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let pool = runtime.block_on(open(directory.path()));
    let store = SqliteStore::new(pool.clone());
    runtime.block_on(store.migrate()).expect("a file of ours");
    let engine = Engine::new("benchmarks", store);
    let write = async |request| {
        in_transaction(&engine, request, |connection| {
            Box::pin(async move {
                let insert = sqlx::query(INSERT).bind(EFFECT.as_slice());
                insert.execute(connection).await.expect("the effect");
            })
        })
        .await
    };
    match what {
        "lease mode" => lease_calls(runtime, &engine, what, calls),
        "bare transaction" => repeat(runtime, calls, async || {
            let mut transaction = pool.begin().await.expect("begin");
            let insert = sqlx::query(INSERT).bind(EFFECT.as_slice());
            insert.execute(&mut *transaction).await.expect("the effect");
            transaction.commit().await.expect("commit");
        }),
        "bare SELECT" => repeat(runtime, calls, async || {
            let select = sqlx::query_scalar(SELECT).bind([0_u8; 32].as_slice());
            let response: Vec<u8> = select.fetch_one(&pool).await.expect("the row");
            assert_eq!(response.len(), 200);
        }),
        _ => in_transactions(runtime, &engine, what, calls, write),
    }
}

fn in_transactions<S: TransactionStore>(
    runtime: &Runtime,
    engine: &Engine<S>,
    what: &str,
    calls: u32,
    write: impl AsyncFn(Request<'static>) -> Answer,
) {
    let key = fresh_key();
    let replays = what.starts_with("replay");
    if replays {
        runtime.block_on(write(request(engine, &key, &ARGUMENTS)));
    }
    repeat(runtime, calls, async || {
        if replays {
            expect_replayed(write(request(engine, &key, &ARGUMENTS)).await);
        } else {
            expect_executed(write(request(engine, &fresh_key(), &ARGUMENTS)).await);
        }
    });
}

async fn open(directory: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(directory.join("cost.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let pool = SqlitePoolOptions::new()
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .expect("a file of ours");
    let tables = sqlx::raw_sql(
        "CREATE TABLE effects (what BLOB NOT NULL);
         CREATE TABLE results (id BLOB PRIMARY KEY, response BLOB) WITHOUT ROWID;
         INSERT INTO results VALUES (zeroblob(32), zeroblob(200))",
    );
    tables.execute(&pool).await.expect("a file of ours");
    pool
}

/// Makes the tables of both sides, and returns the store's schema.
pub(crate) async fn tables(url: &str) {
    let pool = PgPool::connect(url).await.expect("the server answers");
    let tables = sqlx::raw_sql(
        "CREATE TABLE effects (what bytea NOT NULL);
         CREATE TABLE results (id bytea PRIMARY KEY, response bytea);
         INSERT INTO results VALUES (decode(repeat('07', 32), 'hex'), decode(repeat('72', 200), 'hex'))",
    );
    tables.execute(&pool).await.expect("we own the database");
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.expect("we own the database");
    pool.close().await;
}

fn postgres(runtime: &Runtime, what: &str, calls: u32, url: &str) {
    let (what, on) = what.split_once(", ").expect("a path");
    let options: PgConnectOptions = url.parse().expect("a URL");
    let pool = PgPoolOptions::new()
        .max_connections(POOL)
        .connect_lazy_with(options);
    if on == "pool" {
        // All connections are open from the start.
        let all = join_all((0..POOL).map(|_| pool.acquire()));
        drop(runtime.block_on(all));
    }
    match (what, on) {
        ("bare transaction", "pool") => repeat(runtime, calls, async || {
            let mut transaction = pool.begin().await.expect("begin");
            let insert = sqlx::query(INSERT).bind(EFFECT.as_slice());
            insert.execute(&mut *transaction).await.expect("the effect");
            transaction.commit().await.expect("commit");
        }),
        ("bare SELECT", "pool") => repeat(runtime, calls, async || {
            let select = sqlx::query_scalar(SELECT).bind([7_u8; 32].as_slice());
            let response: Vec<u8> = select.fetch_one(&pool).await.expect("the row");
            assert_eq!(response.len(), 200);
        }),
        (_, "hot") => runtime.block_on(hot(what, calls, url)),
        _ => {
            let store = match on {
                "own" => PostgresStore::connect(url).expect("a URL"),
                _ => PostgresStore::new(pool.clone()),
            };
            let engine = Engine::new("benchmarks", store);
            if what == "lease mode" {
                return lease_calls(runtime, &engine, what, calls);
            }
            in_transactions(runtime, &engine, what, calls, async |request| {
                in_transaction(&engine, request, |connection| {
                    Box::pin(async move {
                        let insert = sqlx::query(INSERT).bind(EFFECT.as_slice());
                        insert.execute(connection).await.expect("the effect");
                    })
                })
                .await
            });
        }
    }
}

/// On one connection that is kept.
async fn hot(what: &str, calls: u32, url: &str) {
    let mut connection = PgConnection::connect(url)
        .await
        .expect("the server answers");
    for _ in 0..calls {
        if what == "bare SELECT" {
            let select = sqlx::query_scalar(SELECT).bind([7_u8; 32].as_slice());
            let response: Vec<u8> = select.fetch_one(&mut connection).await.expect("the row");
            assert_eq!(response.len(), 200);
        } else {
            let mut transaction = connection.begin().await.expect("begin");
            let insert = sqlx::query(INSERT).bind(EFFECT.as_slice());
            insert.execute(&mut *transaction).await.expect("the effect");
            transaction.commit().await.expect("commit");
        }
    }
}
