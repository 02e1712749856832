//! Objects that a session's search path puts before Postgres's own.

use std::hash::{DefaultHasher, Hash, Hasher};

use mcp_idempotent_core::{
    TransactionStore,
    store::{Claimed, Ended, postgres::PostgresStore},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::database::{Database, claim, options, text_of, unique};

const SCRIPT: &str = include_str!("hostile.sql");

/// A database with the hostile objects. The first test that asks makes it, for all.
async fn hostile_database() -> PgConnectOptions {
    let mut hash = DefaultHasher::new();
    SCRIPT.hash(&mut hash);
    let name = format!("mcp_idempotent_hostile_{:016x}", hash.finish());
    let mut server = options().connect().await.unwrap();
    let run = async |server: &mut PgConnection, sql: String| {
        let ran = sqlx::raw_sql(AssertSqlSafe(sql)).execute(server).await;
        ran.unwrap();
    };
    // Locks with two numbers, and not the store's.
    run(&mut server, "SELECT pg_advisory_lock(7, 7)".to_owned()).await;
    let made: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&name)
            .fetch_one(&mut server)
            .await
            .unwrap();
    if !made {
        let half = unique("half");
        run(&mut server, format!("CREATE DATABASE {half}")).await;
        let mut inside = options().database(&half).connect().await.unwrap();
        run(&mut inside, SCRIPT.to_owned()).await;
        inside.close().await.unwrap();
        run(
            &mut server,
            format!("ALTER DATABASE {half} RENAME TO {name}"),
        )
        .await;
    }
    server.close().await.unwrap();
    options().database(&name)
}

fn hostile(database: PgConnectOptions) -> PgConnectOptions {
    database.options([("search_path", "hostile, pg_catalog")])
}

/// A store in such sessions, which calls its statements by name or in full.
pub(super) async fn hostile_sessions(prepared: bool) -> Database {
    let server = hostile_database().await;
    let connect = hostile(server.clone());
    Database::on(
        server,
        connect,
        |pool| pool,
        |store| store.with_prepared_statements(prepared),
    )
    .await
}

#[tokio::test]
async fn the_tables_are_made_and_checked_under_a_hostile_search_path() {
    let server = hostile_database().await;
    let schema = unique("m");
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(hostile(server.clone()));
    let store = PostgresStore::builder(pool.clone())
        .with_schema(&schema)
        .build()
        .unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    store.verify().await.unwrap();
    let by_hand = PostgresStore::migration_sql(&unique("m")).unwrap();
    let ran = sqlx::raw_sql(AssertSqlSafe(by_hand)).execute(&pool).await;
    ran.unwrap();
}

/// Otherwise the tests above would prove nothing.
#[tokio::test]
async fn what_is_not_qualified_meets_hostile_objects() {
    let server = hostile_database().await;
    let mut session = hostile(server).connect().await.unwrap();
    for sql in [
        "SELECT 1 = 1",
        "SELECT 1::bigint * interval '1 microsecond'",
        "SELECT 1 IN (1, 2)",
        "SELECT 1 BETWEEN 1 AND 2",
        "SELECT CASE 1 WHEN 1 THEN 1 END",
        "SELECT NULLIF(1, 1)",
        "SELECT 1 = ANY ('{1}'::int[])",
        "SELECT -(1::int)",
        "SELECT now()",
        "SELECT count(*) FROM (VALUES (1)) AS v",
        "SELECT max(1)",
        "SELECT '1'::float8",
        "SELECT oid FROM pg_class",
        // Qualified, but with a cast to be found.
        "SELECT 1::bigint OPERATOR(pg_catalog.||) '1'::pg_catalog.bytea",
    ] {
        let ran = sqlx::raw_sql(sql).execute(&mut session).await;
        assert!(ran.is_err(), "{sql}: {ran:?}");
    }
}

#[tokio::test]
async fn a_call_and_its_replay_pass_under_a_hostile_search_path() {
    for prepared in [true, false] {
        let database = hostile_sessions(prepared).await;
        for size in [10, 100_000] {
            let claim = claim(&format!("key-{size}"), "{}");
            let text = "x".repeat(size);
            let ended = database.call(&claim, &text).await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
            let again = database.store.begin(&claim.call, Some(&claim)).await;
            let Ok(Claimed::Found(record)) = again else {
                panic!("expected a record, found {again:?}");
            };
            assert_eq!(text_of(&record), text);
        }
        assert_eq!(database.effects().await.len(), 2);
    }
}
