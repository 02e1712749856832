//! Postgres as others have set it up: the basic cycle under each setting.

mod roles;

use std::time::Duration;

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Postgres, Stored, effect, unique},
};
use mcp_idempotent_tower::{
    Scope,
    store::postgres::{Isolation, PostgresStore},
};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use sqlx::PgPool;

use crate::{
    server::{Server, is_error, protocol_error, text},
    world::engine,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What the handlers of [`cycle`] do, by number.
mod act {
    pub(super) const SUCCEED: i64 = 1;
    pub(super) const SAY_ERROR: i64 = 2;
    pub(super) const FAIL: i64 = 3;
    pub(super) const SWALLOW: i64 = 4;
    pub(super) const COMMIT: i64 = 5;
    pub(super) const VIOLATE: i64 = 6;
    pub(super) const LARGE: i64 = 7;
}

/// New, replay, conflict, error, misbehaviour, expiry: on a server over `store`, whose handlers
/// write into the effects of `database`.
async fn cycle(database: &Postgres, store: &PostgresStore) {
    let effects = format!("{}.effects", database.schema());
    let server = Server::<Postgres>::new(
        engine(store.clone()).build().unwrap(),
        move |connection, call| {
            let insert = format!(
                "INSERT INTO {effects} (name) VALUES ('run {}')",
                call.earlier
            );
            let again = format!("INSERT INTO {effects} (name) VALUES ('twice'), ('twice')");
            Box::pin(async move {
                if let Err(error) = Postgres::run(connection, &insert).await {
                    return is_error(error.to_string());
                }
                match call.n {
                    act::SAY_ERROR => return is_error("no"),
                    act::FAIL => return protocol_error("no"),
                    act::SWALLOW => drop(Postgres::run(connection, "SELECT 1 / 0").await),
                    act::COMMIT => drop(Postgres::run(connection, "COMMIT").await),
                    act::VIOLATE => {
                        let failed = Postgres::run(connection, &again).await.unwrap_err();
                        let failed = failed.into_database_error().unwrap();
                        return is_error(failed.constraint().unwrap_or("none").to_owned());
                    }
                    act::LARGE => return text("x".repeat(20_000)),
                    _ => {}
                }
                text(format!("run {}", call.earlier))
            })
        },
    );
    let index = format!(
        "CREATE UNIQUE INDEX once_{0} ON {0}.effects (name)",
        database.schema()
    );
    database.execute(&index).await;
    let client = Client::of(server.clone()).await;
    let keyed = |n: i64| -> CallToolRequestParams {
        call("work", json!({ "n": n })).with_key(format!("key-{n}"))
    };

    // New, replay (also without a key), conflict.
    for params in [
        keyed(act::SUCCEED),
        keyed(act::LARGE),
        call("work", json!({ "n": 1 })),
    ] {
        let first = client.call(params.clone()).await;
        first.success();
        assert!(!first.is_replay());
        let retry = client.call(params).await;
        assert!(retry.is_replay());
        assert_eq!(retry.unmarked(), first.json);
    }
    let conflict = call("work", json!({ "n": 99 })).with_key("key-1");
    assert_eq!(
        client.call(conflict).await.refusal(),
        "idempotency_key_conflict"
    );
    let expected = ["run 0", "run 1", "run 2"];
    assert_eq!(database.effects().await, expected);

    // Errors.
    let error = client.call(keyed(act::SAY_ERROR)).await;
    assert_eq!(error.text(), "no");
    let retry = client.call(keyed(act::SAY_ERROR)).await;
    assert!(retry.is_replay());
    assert_eq!(retry.unmarked(), error.json);
    client.call(keyed(act::FAIL)).await.error();
    let swallowed = client.call(keyed(act::SWALLOW)).await;
    assert_eq!(swallowed.refusal(), "idempotency_not_committed");
    let violated = client.call(keyed(act::VIOLATE)).await;
    assert_eq!(violated.text(), format!("once_{}", database.schema()));
    assert_eq!(database.effects().await, expected);
    assert_eq!(database.records().await, [Stored::Completed; 4]);

    // Expiry.
    database.age(DAY + Duration::from_secs(1)).await;
    let anew = client.call(keyed(act::SUCCEED)).await;
    assert!(!anew.is_replay(), "{}", anew.line);
    anew.success();
    assert!(client.call(keyed(act::SUCCEED)).await.is_replay());
    let other = call("work", json!({ "n": 99 })).with_key("key-7");
    client.call(other).await.success();

    // A handler that ends the transaction itself, and those after it.
    let ended = client.call(keyed(act::COMMIT)).await;
    assert_eq!(ended.refusal(), "idempotency_outcome_unknown");
    let runs = server.runs();
    let doubt = client.call(keyed(act::COMMIT)).await;
    assert_eq!(doubt.refusal(), "idempotency_outcome_unknown");
    assert_eq!(server.runs(), runs);
    client.call(keyed(8)).await.success();
    assert!(client.call(keyed(8)).await.is_replay());
}

/// The cycle on connections that run `set_up` first; with look-ups in BEGIN and before it.
async fn cycle_after(set_up: &str) {
    for look_up_first in [false, true] {
        let database = Postgres::create().await;
        let pool = database.pool_set_up_by(3, set_up);
        let store = database
            .builder(pool)
            .with_lookup_first(look_up_first)
            .build()
            .unwrap();
        cycle(&database, &store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_where_the_server_speaks_another_language() {
    let locale = std::env::var("MCP_TEST_LOCALE").expect(
        "this test needs a Postgres that speaks another language than English: run it with tests/run, or set MCP_TEST_LOCALE",
    );
    let set_up = format!("SET lc_messages = '{locale}'");
    let database = Postgres::create().await;
    let mut connection = database.pool_set_up_by(1, &set_up).acquire().await.unwrap();
    let said = Postgres::run(&mut connection, "SELECT 1 / 0").await;
    let said = said.unwrap_err().to_string();
    assert!(!said.contains("division by zero"), "English: {said}");
    cycle_after(&set_up).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_where_repeatable_read_is_the_default() {
    cycle_after("SET default_transaction_isolation = 'repeatable read'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_where_serializable_is_the_default() {
    cycle_after("SET default_transaction_isolation = 'serializable'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_at_each_isolation_that_the_author_chooses() {
    for isolation in [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ] {
        let database = Postgres::create().await;
        let pool = database.pool(database.options(), 3);
        let store = database
            .builder(pool)
            .with_isolation(isolation)
            .build()
            .unwrap();
        cycle(&database, &store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_in_the_time_zone_of_the_chatham_islands() {
    cycle_after("SET TIME ZONE 'Pacific/Chatham'").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_where_our_schema_is_not_on_the_path() {
    cycle_after("SET search_path = public").await;
    cycle_after("SET search_path = ''").await;
}

// The first schema on the path may have tables and functions of the names that we use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_where_the_path_begins_with_names_like_ours() {
    let decoy = Postgres::create().await;
    decoy
        .execute(&format!(
            "CREATE FUNCTION {0}.clock_timestamp() RETURNS timestamptz LANGUAGE sql \
             AS $$ SELECT timestamptz '2000-01-01' $$; \
             CREATE FUNCTION {0}.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql \
             AS $$ SELECT false $$",
            decoy.schema()
        ))
        .await;
    cycle_after(&format!("SET search_path = {}, pg_catalog", decoy.schema())).await;
    assert!(decoy.records().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_for_two_stores_in_two_schemas_on_one_pool() {
    let (left, right) = (Postgres::create().await, Postgres::create().await);
    for size in [1, 3] {
        let pool: PgPool = left.pool(left.options(), size);
        let stores = [&left, &right].map(|database| {
            let store = database.builder(pool.clone()).build();
            store.unwrap()
        });
        if size == 1 {
            // One connection, by turns: each store finds the other's prepared statements there.
            for turn in 0..3 {
                for (database, store) in [&left, &right].into_iter().zip(&stores) {
                    let server = Server::<Postgres>::new(
                        engine(store.clone()).build().unwrap(),
                        |_, call| Box::pin(async move { text(format!("run {}", call.earlier)) }),
                    );
                    let client = Client::of(server).await;
                    let params = call("work", json!({ "n": turn })).with_key("turn");
                    let answer = client.call(params.clone()).await;
                    assert_eq!(answer.success(), "run 0");
                    assert!(!answer.is_replay());
                    assert!(client.call(params).await.is_replay());
                    assert_eq!(database.records().await, [Stored::Completed]);
                    database.execute("DELETE FROM records").await;
                }
            }
        } else {
            tokio::join!(cycle(&left, &stores[0]), cycle(&right, &stores[1]));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cycle_holds_without_prepared_statements() {
    let database = Postgres::create().await;
    let options = database.options().statement_cache_capacity(0);
    let store = database
        .builder(database.pool(options, 3))
        .with_prepared_statements(false)
        .build()
        .unwrap();
    cycle(&database, &store).await;
}

/// Under any isolation duplicates have one effect, also where an expired record is in the way, and
/// who is told to retry gets the result then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_that_race_at_each_isolation_have_one_effect() {
    for isolation in [Isolation::RepeatableRead, Isolation::Serializable] {
        let database = Postgres::create().await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let store = database
                .builder(database.pool(database.options(), 4))
                .with_isolation(isolation)
                .build()
                .unwrap();
            let server =
                Server::<Postgres>::new(engine(store).build().unwrap(), |connection, call| {
                    Box::pin(async move {
                        let name = format!("effect {}", call.n);
                        match effect::<Postgres>(connection, &name).await {
                            Ok(()) => text("done"),
                            Err(_) => protocol_error("no"),
                        }
                    })
                });
            clients.push(Client::of(server).await);
        }
        for round in 1..=4 {
            let racing = (0..48).map(|n| {
                let client = &clients[n % 3];
                let params =
                    call("work", json!({ "n": n / 12 })).with_key(format!("key-{}", n / 12));
                async move {
                    for _ in 0..20 {
                        let answer = client.call(params.clone()).await;
                        if !answer.is_failure() {
                            return answer;
                        }
                        assert_eq!(answer.outcome(), "not_committed");
                    }
                    panic!("twenty times not committed");
                }
            });
            for answer in join_all(racing).await {
                answer.success();
            }
            assert_eq!(database.effects().await.len(), 4 * round, "{isolation:?}");
            assert_eq!(database.records().await, [Stored::Completed; 4]);
            database.age(DAY + Duration::from_secs(1)).await;
        }
    }
}
