//! Tables, prefixes, and databases that are refused.

use mcp_idempotent_core::store::{StoreErrorKind, TransactionStore};

use super::*;

async fn version(pool: &SqlitePool) -> i64 {
    sqlx::query_scalar("SELECT schema_version FROM mcp_idempotent_store")
        .fetch_one(pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn several_may_open_a_new_file_at_once() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("data.db");
    let opening = (0..8).map(|_| tokio::spawn(SqliteStore::open(path.clone())));
    for opened in futures_util::future::join_all(opening).await {
        let store = opened.unwrap().unwrap();
        store.verify().await.unwrap();
        assert_eq!(version(store.pool()).await, 1);
    }
}

#[tokio::test]
async fn opening_again_keeps_the_records() {
    let database = Database::new().await;
    call(&database.store(), &claim(1), "rent", b"paid").await;
    let url = format!("sqlite://{}", database.path().display());
    let store = SqliteStore::open(url).await.unwrap();
    assert_eq!(response(&found(&store, &claim(1)).await), b"paid");
}

#[tokio::test]
async fn own_pool_commits_to_the_disk_in_wal_mode() {
    let database = Database::new().await;
    let store = SqliteStore::open(database.path()).await.unwrap();
    let mut transaction = begin(&store, &claim(1)).await;
    let settings: (String, i64) = sqlx::query_as(
        "SELECT (SELECT journal_mode FROM pragma_journal_mode), \
         (SELECT synchronous FROM pragma_synchronous)",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    assert_eq!(settings, ("wal".to_owned(), 2));
}

#[tokio::test]
async fn missing_tables_are_named_with_what_to_do() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_table_prefix("other_")
        .build()
        .unwrap();
    let error = store.verify().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("migrate()"), "{error}");
    let error = store
        .begin(&claim(1).call, Some(&claim(1)))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    store.migrate().await.unwrap();
    store.verify().await.unwrap();
    call(&store, &claim(1), "rent", b"paid").await;
    assert!(is_free(&database.store(), &claim(1)).await, "another table");
}

#[tokio::test]
async fn sql_taken_by_hand_makes_tables_that_verify() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_table_prefix("by_hand_")
        .build()
        .unwrap();
    for migration in store.migrations() {
        assert!(!migration.contains("mcp_idempotent_"), "{migration}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(migration))
            .execute(store.pool())
            .await
            .unwrap();
    }
    store.verify().await.unwrap();
    store.migrate().await.unwrap();
}

#[tokio::test]
async fn tables_of_a_newer_version_are_refused_and_left_alone() {
    let database = Database::new().await;
    database
        .run("UPDATE mcp_idempotent_store SET schema_version = 99")
        .await;
    let store = database.store();
    for refused in [store.verify().await, store.migrate().await] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        assert!(error.to_string().contains("newer"), "{error}");
    }
    assert_eq!(version(store.pool()).await, 99);
}

#[tokio::test]
async fn database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite://x?mode=memory"] {
        let pool = SqlitePoolOptions::new().connect_lazy(url).unwrap();
        let store = SqliteStore::new(pool);
        let error = store.migrate().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        assert!(error.to_string().contains("memory"), "{error}");
        assert!(SqliteStore::open(url).await.is_err());
    }
}

#[tokio::test]
async fn journal_mode_other_than_wal_is_refused_with_what_to_do() {
    let directory = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(directory.path().join("data.db"))
        .create_if_missing(true);
    let store = SqliteStore::new(SqlitePoolOptions::new().connect_lazy_with(options));
    let error = store.verify().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("PRAGMA journal_mode"), "{error}");
}

#[tokio::test]
async fn prefix_that_is_no_identifier_is_refused() {
    let database = Database::new().await;
    for prefix in [
        "",
        "a b",
        "a;DROP TABLE payment;--",
        "\"a\"",
        "1a",
        "sqlite_x",
        "é",
        &"a".repeat(41),
    ] {
        let refused = database.builder().with_table_prefix(prefix).build();
        assert_eq!(
            refused.unwrap_err().kind(),
            StoreErrorKind::Misconfigured,
            "{prefix:?}"
        );
    }
}

#[tokio::test]
async fn the_file_says_whose_key_it_is_and_only_how_it_begins() {
    let database = Database::new().await;
    let store = database.store();
    call(&store, &claim(1), "rent", b"paid").await;
    store.close().await;
    let bytes = std::fs::read(database.path()).unwrap();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"3f1c-b2a") && has(b"alice@example.com"));
    assert!(!has(b"3f1c-b2af"));
}
