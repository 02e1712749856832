//! Creating the tables, checking them, and naming what is missing.

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{StoreErrorKind, postgres::PostgresStore},
};
use sqlx::{AssertSqlSafe, postgres::PgPoolOptions};

use super::database::{Database, claim, options, unique};

fn store(schema: &str) -> PostgresStore {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(options());
    PostgresStore::builder(pool)
        .with_schema(schema)
        .build()
        .unwrap()
}

#[tokio::test]
async fn migrations_run_at_once_and_again() {
    let schema = unique("m");
    let runs = (0..8).map(|_| {
        let store = store(&schema);
        tokio::spawn(async move { store.migrate().await })
    });
    for run in runs.collect::<Vec<_>>() {
        run.await.unwrap().unwrap();
    }
    store(&schema).migrate().await.unwrap();
    store(&schema).verify().await.unwrap();
}

#[tokio::test]
async fn the_sql_by_hand_makes_the_same_tables_and_may_be_run_again() {
    let schema = unique("m");
    let sql = PostgresStore::migration_sql(&schema).unwrap();
    let pool = PgPoolOptions::new().connect_with(options()).await.unwrap();
    for _ in 0..2 {
        sqlx::raw_sql(AssertSqlSafe(sql.clone()))
            .execute(&pool)
            .await
            .unwrap();
    }
    store(&schema).verify().await.unwrap();
    store(&schema).migrate().await.unwrap();
}

#[tokio::test]
async fn missing_tables_are_named_with_their_remedy() {
    let store = store(&unique("m"));
    let claim = claim("key", "{}");
    for error in [
        store.verify().await.unwrap_err(),
        store.claim(&claim).await.unwrap_err(),
        store.look_up(&claim).await.unwrap_err(),
        store.sweep(1).await.unwrap_err(),
        store.begin(&claim.call, Some(&claim)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        assert!(
            error.to_string().contains("PostgresStore::migrate"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn missing_rights_are_named() {
    let database = Database::new().await;
    let role = unique("r");
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'pass'; GRANT USAGE ON SCHEMA {{s}} TO {role}; \
             GRANT SELECT ON {{s}}.migrations, {{s}}.records TO {role}"
        ))
        .await;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_lazy_with(options().username(&role).password("pass"));
    let store = PostgresStore::builder(pool)
        .with_schema(&database.schema)
        .build()
        .unwrap();
    let error = store.verify().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("lacks rights"), "{error}");
    let error = store.claim(&claim("key", "{}")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
    assert!(error.to_string().contains("grants"), "{error}");
    // It may not create anything either.
    assert!(store.migrate().await.is_ok(), "nothing was left to do");
    database
        .execute(&format!(
            "GRANT INSERT, UPDATE, DELETE ON {{s}}.records TO {role}; \
             GRANT USAGE ON SEQUENCE {{s}}.tokens TO {role}"
        ))
        .await;
    store.verify().await.unwrap();
    database
        .execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn a_schema_is_a_plain_identifier() {
    let pool = PgPoolOptions::new().connect_lazy_with(options());
    let long = "a".repeat(64);
    for name in [
        "", "1a", "a-b", "a\"b", "A", "a b", "pg_a", "ä", "a;drop", &long,
    ] {
        let built = PostgresStore::builder(pool.clone())
            .with_schema(name)
            .build();
        let error = built.expect_err(name);
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured);
        assert!(PostgresStore::migration_sql(name).is_err());
    }
}
