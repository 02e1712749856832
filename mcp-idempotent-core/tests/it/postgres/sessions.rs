//! Sessions as users have them: other isolation, roles, row-level security, poolers, languages.

use std::sync::Arc;

use mcp_idempotent_core::{
    RecordState, Store, TransactionStore,
    store::{
        Claimed, End, Ended,
        postgres::{Isolation, PostgresStore},
    },
};
use sqlx::{AssertSqlSafe, Executor, postgres::PgPoolOptions};

use super::{
    database::{Database, begin, claim, options, result, text_of, unique},
    proxy::Proxy,
};

/// Keys that have nothing to do with each other do not fail to serialise because of our look-ups.
#[tokio::test]
async fn a_serializable_default_is_noticed_and_unrelated_calls_do_not_conflict() {
    let by_default = Database::with(
        |options| options.options([("default_transaction_isolation", "serializable")]),
        |pool| pool.max_connections(16),
        |store| store,
    )
    .await;
    let by_builder =
        Database::with_store(|store| store.with_isolation(Isolation::Serializable)).await;
    for database in [by_default, by_builder] {
        let mut open = Vec::new();
        for key in 0..8 {
            let claim = claim(&format!("key-{key}"), "{}");
            open.push((database.begin(&claim).await, claim));
        }
        for (transaction, claim) in open {
            let ended = database.commit(transaction, &claim, "result").await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        }
    }
}

/// Many unrelated calls at once, each of which only writes: all of them commit at the first try.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_serializable_our_statements_make_no_call_fail() {
    for by_default in [false, true] {
        let database = Database::with(
            |options| {
                if by_default {
                    options.options([("default_transaction_isolation", "serializable")])
                } else {
                    options
                }
            },
            |pool| pool.max_connections(16),
            |store| {
                if by_default {
                    store
                } else {
                    store.with_isolation(Isolation::Serializable)
                }
            },
        )
        .await;
        let database = Arc::new(database);
        let callers = (0..16).map(|caller| {
            let database = Arc::clone(&database);
            tokio::spawn(async move {
                let mut refused = 0;
                for call in 0..40 {
                    let claim = claim(&format!("key-{caller}-{call}"), "{}");
                    match database.call(&claim, "effect").await {
                        Ended::AsAsked(_) => {}
                        Ended::Aborted(_) => refused += 1,
                        other => panic!("unexpected: {other:?}"),
                    }
                }
                refused
            })
        });
        let mut refused = 0;
        for caller in callers.collect::<Vec<_>>() {
            refused += caller.await.unwrap();
        }
        assert_eq!(refused, 0, "of 640 calls; by default: {by_default}");
    }
}

#[tokio::test]
async fn the_isolation_of_the_builder_holds_and_so_does_the_default() {
    for (isolation, expected) in [
        (None, "read committed"),
        (Some(Isolation::ReadCommitted), "read committed"),
        (Some(Isolation::RepeatableRead), "repeatable read"),
        (Some(Isolation::Serializable), "serializable"),
    ] {
        let database = Database::with_store(|store| match isolation {
            Some(isolation) => store.with_isolation(isolation),
            None => store,
        })
        .await;
        let mut transaction = database.begin(&claim("key", "{}")).await;
        let level: String = sqlx::query_scalar("SHOW transaction_isolation")
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(level, expected);
    }
}

#[tokio::test]
async fn it_works_under_forced_row_level_security_and_a_role_set_by_the_hook() {
    let database = Database::new().await;
    let (login, app) = (unique("login"), unique("app"));
    database
        .execute(&format!(
            "CREATE ROLE {app} NOLOGIN; CREATE ROLE {login} LOGIN PASSWORD 'pass' NOINHERIT IN ROLE {app}; \
             GRANT USAGE ON SCHEMA {{s}} TO {app}, {login}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {{s}}.records TO {app}, {login}; \
             GRANT USAGE ON SEQUENCE {{s}}.tokens TO {app}, {login}; \
             CREATE TABLE {{s}}.orders (tenant text DEFAULT current_setting('app.tenant'), what text); \
             ALTER TABLE {{s}}.orders OWNER TO {app}; \
             ALTER TABLE {{s}}.orders ENABLE ROW LEVEL SECURITY; \
             ALTER TABLE {{s}}.orders FORCE ROW LEVEL SECURITY; \
             CREATE POLICY own ON {{s}}.orders USING (tenant = current_setting('app.tenant'))"
        ))
        .await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options().username(&login).password("pass"));
    let set_role = format!("SET LOCAL ROLE {app}");
    let store = PostgresStore::builder(pool)
        .with_schema(&database.schema)
        .with_on_begin(move |connection, call| {
            let set_role = set_role.clone();
            Box::pin(async move {
                connection
                    .execute(sqlx::raw_sql(AssertSqlSafe(set_role)))
                    .await?;
                sqlx::query("SELECT set_config('app.tenant', $1, true)")
                    .bind(call.scope.as_ref().map(mcp_idempotent_core::Scope::as_str))
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .build()
        .unwrap();
    for (key, end, recorded) in [
        ("commits", End::Commit(result("result")), true),
        ("large", End::Commit(result(&"x".repeat(100_000))), true),
        ("fails", End::RollBackAndRecord(result("error")), true),
        ("undone", End::RollBack, false),
    ] {
        let claim = claim(key, "{}");
        let mut transaction = begin(&store, &claim).await;
        sqlx::query(database.sql("INSERT INTO {s}.orders (what) VALUES ($1)"))
            .bind(key)
            .execute(&mut *transaction)
            .await
            .unwrap();
        let ended = store.end(transaction, Some(&claim), end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        assert_eq!(store.look_up(&claim).await.unwrap().is_some(), recorded);
    }
    // A handler that commits loses the role with the transaction; that is noticed all the same.
    let claim = claim("commits-itself", "{}");
    let mut transaction = begin(&store, &claim).await;
    transaction.execute("COMMIT").await.unwrap();
    let end = End::Commit(result("result"));
    let ended = store.end(transaction, Some(&claim), end).await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let seen: Vec<(String, String)> =
        sqlx::query_as(database.sql("SELECT tenant, what FROM {s}.orders ORDER BY what"))
            .fetch_all(&database.outside)
            .await
            .unwrap();
    let expected = ["commits", "large"].map(|what| ("tests".to_owned(), what.to_owned()));
    assert_eq!(seen, expected);
    database
        .execute(&format!(
            "DROP TABLE {{s}}.orders; DROP OWNED BY {app}, {login}; DROP ROLE {login}, {app}"
        ))
        .await;
}

/// A login that may not touch the records, with a role that may: the handler's COMMIT takes the
/// role away, so that the finishing batch fails for its rights and not at the check.
#[tokio::test]
async fn a_commit_by_the_handler_is_noticed_also_where_its_role_went_with_it() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let role = unique("powerless");
    database.execute(&format!("CREATE ROLE {role}")).await;
    database.write(&mut transaction, "committed").await;
    for sql in ["COMMIT".to_owned(), format!("SET ROLE {role}")] {
        transaction
            .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .unwrap();
    }
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let record = database.store.look_up(&claim).await.unwrap().unwrap();
    assert!(matches!(record.state, RecordState::InDoubt { .. }));
    database.execute(&format!("DROP ROLE {role}")).await;
}

#[tokio::test]
async fn two_stores_in_two_schemas_share_a_pool_and_nothing_else() {
    let (one, other) = (Database::with_pool(1).await, Database::new().await);
    let second = PostgresStore::builder(one.pool.clone())
        .with_schema(&other.schema)
        .build()
        .unwrap();
    let claim = claim("key", "{}");
    for _ in 0..3 {
        let ended = one.call(&claim, "one").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        let transaction = begin(&second, &claim).await;
        let end = End::Commit(result("other"));
        let ended = second.end(transaction, Some(&claim), end).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        for (store, text) in [(&one.store, "one"), (&second, "other")] {
            let record = store.look_up(&claim).await.unwrap().unwrap();
            assert_eq!(text_of(&record), text);
        }
        one.execute("DELETE FROM {s}.records").await;
        other.execute("DELETE FROM {s}.records").await;
    }
    // Not even their locks meet.
    let wide = one.another_process(|store| store.with_schema(&other.schema));
    let _running = one.begin(&claim).await;
    drop(begin(&wide, &claim).await);
}

#[tokio::test]
async fn prepared_statements_that_are_gone_are_prepared_again() {
    let database = Database::with(
        |options| options,
        |pool| {
            pool.max_connections(1).before_acquire(|connection, _| {
                Box::pin(async move {
                    connection.execute("DEALLOCATE ALL").await?;
                    Ok(true)
                })
            })
        },
        |store| store.with_lookup_first(true),
    )
    .await;
    for key in ["one", "two", "three"] {
        let claim = claim(key, "{}");
        // `write` uses a statement that sqlx believes to be prepared, so it is left out.
        let transaction = database.begin(&claim).await;
        let ended = database.commit(transaction, &claim, key).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
        let found = database.store.begin(&claim.call, Some(&claim)).await;
        assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
    }
}

#[tokio::test]
async fn behind_a_pooler_that_loses_prepared_statements_calls_go_on_without() {
    for lookup_first in [false, true] {
        let proxy = Proxy::start(&super::database::options());
        proxy.forget_prepared_statements();
        let database = Database::with(
            |options| proxy.options(options).statement_cache_capacity(0),
            |pool| pool.max_connections(1),
            |store| store.with_lookup_first(lookup_first),
        )
        .await;
        let large = "x".repeat(100_000);
        for (key, text) in [("one", "small"), ("two", "small"), ("large", &large)] {
            let claim = claim(key, "{}");
            let transaction = database.begin(&claim).await;
            let ended = database.commit(transaction, &claim, text).await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
            let found = database.store.begin(&claim.call, Some(&claim)).await;
            assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
        }
        let Ok(Claimed::New(lease)) = database.store.claim(&claim("lease", "{}")).await else {
            panic!("the key is new");
        };
        database
            .store
            .complete(&lease, result("done"))
            .await
            .unwrap();
    }
}

/// Set to a locale in which the server has translated messages, by the test command.
#[tokio::test]
async fn nothing_rests_on_the_language_of_messages() {
    let locale = std::env::var("MCP_TEST_LOCALE").expect(
        "set MCP_TEST_LOCALE to a locale in which the database of DATABASE_URL speaks another language than English, as tests/run does",
    );
    let database =
        Database::with_options(|options| options.options([("lc_messages", &*locale)])).await;
    let error = sqlx::query("SELECT 1 / 0").execute(&database.pool).await;
    let message = error.unwrap_err().to_string();
    assert!(!message.contains("division by zero"), "{message}");
    let first = claim("key", "{}");
    let running = database.begin(&first).await;
    let busy = database.store.begin(&first.call, Some(&first)).await;
    assert!(matches!(busy, Ok(Claimed::InProgress)), "{busy:?}");
    let decoy = claim("decoy", "{}");
    let loser = database.begin(&decoy).await;
    let ended = database.commit(running, &first, "winner").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let ended = database.commit(loser, &first, "loser").await;
    assert!(matches!(ended, Ended::Lost(_)), "{ended:?}");
    let mut own = database.begin(&decoy).await;
    own.execute("COMMIT").await.unwrap();
    let ended = database.commit(own, &decoy, "result").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
}
