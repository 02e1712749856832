//! Handlers that do to their transaction what they should not.

use mcp_idempotent_core::{
    RecordState, Store, TransactionStore,
    store::{
        Claimed, End, Ended, StoreErrorKind,
        postgres::{PgTransaction, PostgresStore},
    },
};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::database::{Database, claim, result, text_of, unique};

/// Runs raw SQL as a careless handler does: without looking at what it says.
async fn raw(connection: &mut PgConnection, sql: &str) {
    let _ = connection
        .execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())))
        .await;
}

const ENDINGS: [&str; 12] = [
    "COMMIT",
    "ROLLBACK",
    "COMMIT; BEGIN",
    "ROLLBACK; BEGIN",
    "COMMIT AND CHAIN",
    "ROLLBACK AND CHAIN",
    "COMMIT; BEGIN; SELECT 1 / 0",
    "COMMIT AND CHAIN; SELECT 1 / 0",
    "ROLLBACK; BEGIN; SELECT 1 / 0",
    "ROLLBACK; BEGIN; COMMIT; BEGIN; SELECT 1 / 0",
    "ROLLBACK; BEGIN; SAVEPOINT mine; SELECT 1 / 0",
    "COMMIT; BEGIN; SET LOCAL mcp_idempotent.call = '1'; SAVEPOINT mcp_idempotent",
];

fn ends() -> [End; 4] {
    [
        End::Commit(result("result")),
        End::Commit(result(&"x".repeat(100_000))),
        End::RollBack,
        End::RollBackAndRecord(result("error")),
    ]
}

async fn is_in_doubt(store: &PostgresStore, claim: &mcp_idempotent_core::store::Claim) {
    let found = store.begin(&claim.call, Some(claim)).await;
    assert!(
        matches!(&found, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::InDoubt { .. })),
        "{found:?}"
    );
}

#[tokio::test]
async fn a_handler_that_ends_the_transaction_itself_leaves_the_key_in_doubt() {
    let database = Database::with_pool(1).await;
    for sql in ENDINGS {
        for (index, end) in ends().into_iter().enumerate() {
            let what = format!("{sql} / {index}");
            let claim = claim(&what.replace(' ', "-"), "{}");
            let mut transaction = database.begin(&claim).await;
            database.write(&mut transaction, &what).await;
            raw(&mut transaction, sql).await;
            let ended = database.store.end(transaction, Some(&claim), end).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{what}: {ended:?}");
            is_in_doubt(&database.store, &claim).await;
        }
    }
}

#[tokio::test]
async fn also_when_a_savepoint_of_its_own_was_open() {
    let database = Database::with_pool(1).await;
    for sql in ENDINGS {
        let claim = claim(&sql.replace(' ', "-"), "{}");
        let mut transaction = database.begin(&claim).await;
        let mut nested = transaction.begin().await.unwrap();
        database.write(&mut nested, sql).await;
        raw(&mut nested, sql).await;
        drop(nested);
        let ended = database.commit(transaction, &claim, "result").await;
        // Dropping the savepoint may have aborted the handler's own transaction, which leaves
        // nothing to be in doubt about where ours was rolled back.
        if matches!(ended, Ended::Aborted(_)) {
            assert!(sql.starts_with("ROLLBACK"), "{sql}: {ended:?}");
            assert!(!database.effects().await.contains(&sql.to_owned()));
        } else {
            assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
            is_in_doubt(&database.store, &claim).await;
        }
    }
}

#[tokio::test]
async fn an_unprotected_call_notices_it_too() {
    let database = Database::with_pool(1).await;
    let call = claim("unused", "{}").call;
    for sql in ENDINGS {
        for end in [End::CommitUnrecorded, End::RollBack] {
            let Ok(Claimed::New(mut transaction)) = database.store.begin(&call, None).await else {
                panic!("an unprotected call always begins");
            };
            raw(&mut transaction, sql).await;
            let ended = database.store.end(transaction, None, end).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn a_doubt_never_overwrites_a_record() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    raw(&mut transaction, "COMMIT").await;
    // The lock went with the transaction, so another caller gets in.
    let ended = database.call(&claim, "winner").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let ended = database.commit(transaction, &claim, "late").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let record = database.store.look_up(&claim).await.unwrap().unwrap();
    assert_eq!(text_of(&record), "winner");
}

#[tokio::test]
async fn a_doubt_beats_an_attempt_that_got_in_meanwhile() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let mut first = database.begin(&claim).await;
    raw(&mut first, "COMMIT").await;
    let mut second = database.begin(&claim).await;
    database.write(&mut second, "second").await;
    let ended = database.commit(first, &claim, "first").await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let ended = database.commit(second, &claim, "second").await;
    assert!(
        matches!(&ended, Ended::Lost(record) if matches!(record.state, RecordState::InDoubt { .. })),
        "{ended:?}"
    );
    assert!(database.effects().await.is_empty());
}

async fn with_swallowed_error(database: &Database, key: &str) -> PgTransaction {
    let mut transaction = database.begin(&claim(key, "{}")).await;
    database.write(&mut transaction, key).await;
    raw(&mut transaction, "SELECT 1 / 0").await;
    transaction
}

#[tokio::test]
async fn a_swallowed_database_error_is_never_a_success() {
    let database = Database::with_pool(1).await;
    for (index, end) in [
        End::Commit(result("result")),
        End::Commit(result(&"x".repeat(100_000))),
        End::RollBackAndRecord(result("error")),
        End::CommitUnrecorded,
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("key-{index}");
        let transaction = with_swallowed_error(&database, &key).await;
        let claim = claim(&key, "{}");
        let ended = database.store.end(transaction, Some(&claim), end).await;
        let Ended::Aborted(error) = ended else {
            panic!("expected an abort, found {ended:?}");
        };
        assert_eq!(error.kind(), StoreErrorKind::Aborted);
        assert!(database.effects().await.is_empty());
        assert_eq!(database.records().await, 0);
    }
    let transaction = with_swallowed_error(&database, "key").await;
    let claim = claim("key", "{}");
    let ended = database
        .store
        .end(transaction, Some(&claim), End::RollBack)
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    // The key is free.
    let ended = database.call(&claim, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

#[tokio::test]
async fn a_nested_begin_is_a_savepoint() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let mut nested = transaction.begin().await.unwrap();
    database.write(&mut nested, "kept").await;
    nested.commit().await.unwrap();
    assert!(database.effects().await.is_empty());
    let mut nested = transaction.begin().await.unwrap();
    database.write(&mut nested, "rolled back").await;
    nested.rollback().await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    database.write(&mut nested, "dropped").await;
    drop(nested);
    let mut nested = transaction.begin().await.unwrap();
    database.write(&mut nested, "failed").await;
    raw(&mut nested, "SELECT 1 / 0").await;
    nested.rollback().await.unwrap();
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["kept"]);
}

#[tokio::test]
async fn a_connection_on_which_a_nested_transaction_leaked_is_not_used_again() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let mut nested = std::mem::ManuallyDrop::new(transaction.begin().await.unwrap());
    database.write(&mut nested, "kept").await;
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let mut connection = database.pool.acquire().await.unwrap();
    assert!(!connection.is_in_transaction());
    database.write(&mut connection, "next").await;
    assert_eq!(database.effects().await, ["kept", "next"]);
}

#[tokio::test]
async fn a_unique_violation_of_the_authors_is_the_authors_error() {
    let database = Database::with_pool(1).await;
    // Named as ours are, and checked at the commit.
    database
        .execute(
            "CREATE SCHEMA {s}_app; CREATE TABLE {s}_app.records (id int, \
             CONSTRAINT mcp_idempotent_records_pkey UNIQUE (id) DEFERRABLE INITIALLY DEFERRED); \
             INSERT INTO {s}_app.records VALUES (1)",
        )
        .await;
    let claim = claim("key", "{}");
    for deferred in [true, false] {
        let mut transaction = database.begin(&claim).await;
        if !deferred {
            raw(&mut transaction, "SET CONSTRAINTS ALL IMMEDIATE").await;
        }
        let insert = format!("INSERT INTO {}_app.records VALUES (1)", database.schema);
        raw(&mut transaction, &insert).await;
        let ended = database.commit(transaction, &claim, "result").await;
        assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
        assert_eq!(database.records().await, 0);
    }
    let ended = database.call(&claim, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    database.execute("DROP SCHEMA {s}_app CASCADE").await;
}

#[tokio::test]
async fn a_handler_that_drops_the_prepared_statements_is_rolled_back() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    database.write(&mut transaction, "undone").await;
    raw(&mut transaction, "DEALLOCATE ALL").await;
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn savepoints_of_the_handlers_are_its_own() {
    let database = Database::with_pool(1).await;
    let insert = |what: &str| format!("INSERT INTO {}.effects VALUES ('{what}')", database.schema);
    let (kept, undone) = (insert("kept"), insert("undone"));
    for (index, sql) in [
        format!("SAVEPOINT a; {undone}; ROLLBACK TO a; {kept}"),
        format!("{kept}; SAVEPOINT a; {undone}; SAVEPOINT b; {undone}; ROLLBACK TO a; SAVEPOINT b"),
        format!("{kept}; SAVEPOINT a; {undone}; SELECT 1 / 0"),
        format!("SAVEPOINT a; SAVEPOINT a; {kept}; RELEASE a"),
        format!("SAVEPOINT mcp_idempotent; {undone}; ROLLBACK TO mcp_idempotent; {kept}"),
        format!("{kept}; RESET ALL"),
        format!("SET LOCAL mcp_idempotent.call = '0'; SET mcp_idempotent.committed = '0'; {kept}"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("key-{index}");
        let claim = claim(&key, "{}");
        let mut transaction = database.begin(&claim).await;
        raw(&mut transaction, &sql).await;
        // The handler goes back to its savepoint, where it left an error behind.
        if sql.ends_with("1 / 0") {
            raw(&mut transaction, "ROLLBACK TO a").await;
        }
        let ended = database.commit(transaction, &claim, "result").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{sql}: {ended:?}");
        assert_eq!(database.effects().await.len(), index + 1, "{sql}");
    }
    assert!(database.effects().await.iter().all(|what| what == "kept"));
}

/// A handler that finds out the name of our savepoint and uses it.
#[tokio::test]
async fn a_savepoint_with_our_own_name_changes_no_answer() {
    let application = unique("named");
    let database = Database::with(
        |options| options.application_name(&application),
        |pool| pool.max_connections(1),
        |store| store,
    )
    .await;
    let transaction = database.begin(&claim("named", "{}")).await;
    let name: String = sqlx::query_scalar(
        "SELECT substring(query FROM 'SAVEPOINT (\\w+)') FROM pg_stat_activity \
         WHERE application_name = $1",
    )
    .bind(&application)
    .fetch_one(&database.outside)
    .await
    .unwrap();
    drop(transaction);
    for (index, sql, as_asked) in [
        (0, "SAVEPOINT {n}; {i}", true),
        (
            1,
            "SAVEPOINT {n}; {i}; SAVEPOINT {n}; ROLLBACK TO {n}",
            true,
        ),
        (2, "{i}; ROLLBACK TO {n}; {i}", true),
        (3, "{i}; RELEASE {n}", false),
        (4, "SAVEPOINT {n}; {i}; SELECT 1 / 0", false),
    ] {
        let insert = format!("INSERT INTO {}.effects VALUES ('{index}')", database.schema);
        let sql = sql.replace("{n}", &name).replace("{i}", &insert);
        let claim = claim(&format!("key-{index}"), "{}");
        let mut transaction = database.begin(&claim).await;
        raw(&mut transaction, &sql).await;
        let ended = database.commit(transaction, &claim, "result").await;
        assert_eq!(
            matches!(ended, Ended::AsAsked(_)),
            as_asked,
            "{sql}: {ended:?}"
        );
        let happened = database.effects().await.contains(&index.to_string());
        assert_eq!(happened, as_asked, "{sql}");
    }
}

#[tokio::test]
async fn a_handler_that_makes_its_transaction_read_only_does_so_for_itself() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    raw(&mut transaction, "SET TRANSACTION READ ONLY").await;
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.records().await, 1);
}
