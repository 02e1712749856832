//! `SqliteStore` against what a user would write without it, with commits that wait for the disk
//! (`synchronous = FULL`) and with commits that do not (`NORMAL`).

mod call;
mod paired;

use std::path::Path;

use call::{
    ARGUMENTS, EFFECT, conflicting_request, expect_executed, expect_refused, expect_replayed,
    fresh_key, in_transaction, joining, request, under_lease,
};
use mcp_idempotent_core::{Answer, Engine, Request, store::sqlite::SqliteStore};
use paired::{Paired, Target, each};
use sqlx::{
    SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::runtime::{Builder, Runtime};

const INSERT: &str = "INSERT INTO effects (what) VALUES ($1)";

fn main() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    measure(&runtime, "FULL", SqliteSynchronous::Full);
    measure(&runtime, "NORMAL", SqliteSynchronous::Normal);
}

/// A file with the tables of both sides.
async fn open(directory: &Path, file: &str, synchronous: SqliteSynchronous) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(directory.join(file))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous);
    let pool = SqlitePoolOptions::new()
        .test_before_acquire(false)
        .connect_with(options)
        .await
        .expect("a file of ours");
    sqlx::raw_sql(
        "CREATE TABLE effects (what BLOB NOT NULL);
         CREATE TABLE results (id BLOB PRIMARY KEY, response BLOB) WITHOUT ROWID;
         INSERT INTO results VALUES (zeroblob(32), zeroblob(200))",
    )
    .execute(&pool)
    .await
    .expect("a file of ours");
    pool
}

fn measure(runtime: &Runtime, name: &str, synchronous: SqliteSynchronous) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    // A file for each side: a connection that finds the file changed by another one starts with an
    // empty cache, and taking turns on one file would make that happen all the time.
    let bare = runtime.block_on(open(directory.path(), "bare.db", synchronous));
    let ours = runtime.block_on(open(directory.path(), "ours.db", synchronous));
    let store = SqliteStore::new(ours);
    runtime.block_on(store.migrate()).expect("a file of ours");
    let engine = Engine::new("benchmarks", store);

    let mut paired = Paired::new(runtime, format!("SQLite, WAL, synchronous = {name}"));
    let transaction = async |calls| each(calls, async || bare_transaction(&bare).await).await;
    let select = async |calls| each(calls, async || bare_select(&bare).await).await;
    let key = fresh_key();
    let record = async || {
        drop(write_in(&engine, request(&engine, &key, &ARGUMENTS)).await);
    };

    paired.row(
        "first call",
        Target::AtMost(1.3),
        8,
        transaction,
        async |calls| {
            each(calls, async || {
                let request = request(&engine, &fresh_key(), &ARGUMENTS);
                expect_executed(write_in(&engine, request).await);
            })
            .await
        },
    );
    paired.row(
        "first call, lease mode (an empty handler)",
        Target::None,
        8,
        transaction,
        async |calls| {
            each(calls, async || {
                let request = request(&engine, &fresh_key(), &ARGUMENTS);
                expect_executed(under_lease(&engine, request).await);
            })
            .await
        },
    );
    paired.row_after(
        "replay / SELECT",
        Target::None,
        32,
        record,
        select,
        async |calls| {
            each(calls, async || {
                expect_replayed(write_in(&engine, request(&engine, &key, &ARGUMENTS)).await);
            })
            .await
        },
    );
    paired.row_after(
        "conflict / SELECT",
        Target::None,
        32,
        record,
        select,
        async |calls| {
            each(calls, async || {
                expect_refused(write_in(&engine, conflicting_request(&engine, &key)).await);
            })
            .await
        },
    );
    paired.row(
        "joining a running call / SELECT",
        Target::None,
        32,
        select,
        async |_| joining(&engine, 64).await,
    );
    paired.finish();
}

async fn bare_transaction(pool: &SqlitePool) {
    let mut transaction = pool.begin().await.expect("begin");
    sqlx::query(INSERT)
        .bind(EFFECT.as_slice())
        .execute(&mut *transaction)
        .await
        .expect("the effect");
    transaction.commit().await.expect("commit");
}

async fn bare_select(pool: &SqlitePool) {
    let response: Vec<u8> = sqlx::query_scalar("SELECT response FROM results WHERE id = $1")
        .bind([0_u8; 32].as_slice())
        .fetch_one(pool)
        .await
        .expect("the row");
    assert_eq!(response.len(), 200);
}

async fn write_in(engine: &Engine<SqliteStore>, request: Request<'_>) -> Answer {
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
