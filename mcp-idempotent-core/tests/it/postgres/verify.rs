//! The check at start-up: what it refuses, and with which remedy.

use mcp_idempotent_core::store::{
    StoreError, StoreErrorKind,
    postgres::{PostgresStore, PostgresStoreBuilder},
};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::database::{Database, options, unique};

/// What a process that connects so is told about the tables of `database`.
async fn told(database: &Database, connect: PgConnectOptions) -> Result<(), StoreError> {
    told_by(database, connect, |store| store).await
}

async fn told_by(
    database: &Database,
    connect: PgConnectOptions,
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> Result<(), StoreError> {
    // One connection must do.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(connect);
    store(PostgresStore::builder(pool).with_schema(&database.schema))
        .build()
        .unwrap()
        .verify()
        .await
}

fn is_misconfigured(told: Result<(), StoreError>, remedy: &str) {
    let error = told.expect_err(remedy);
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains(remedy), "{error}");
}

#[tokio::test]
async fn sound_tables_are_accepted_and_nothing_is_left_behind() {
    let database = Database::new().await;
    database.witness("TG_OP").await;
    for prepared in [true, false] {
        let told = told_by(&database, options(), |store| {
            store.with_prepared_statements(prepared)
        });
        told.await.unwrap();
    }
    assert_eq!(database.records().await, 0);
    assert!(database.witnessed().await.is_empty());
    let role = unique("r");
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'pass'; GRANT USAGE ON SCHEMA {{s}} TO {role}; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {{s}}.records TO {role}; \
             GRANT USAGE ON SEQUENCE {{s}}.tokens TO {role}; \
             GRANT SELECT ON {{s}}.migrations TO {role}; \
             GRANT INSERT ON {{s}}.witness TO {role}"
        ))
        .await;
    let as_role = options().username(&role).password("pass");
    told(&database, as_role).await.unwrap();
}

#[tokio::test]
async fn a_lost_primary_key_is_named() {
    let database = Database::new().await;
    let drop = "ALTER TABLE {s}.records DROP CONSTRAINT mcp_idempotent_records_pkey";
    database.execute(drop).await;
    is_misconfigured(told(&database, options()).await, "PRIMARY KEY (id)");
    // An index that is not unique, or a constraint of another name, is no help.
    let index = "CREATE INDEX mcp_idempotent_records_pkey ON {s}.records (id)";
    database.execute(index).await;
    is_misconfigured(told(&database, options()).await, "PRIMARY KEY (id)");
    let mend = format!(
        "DROP INDEX {{s}}.mcp_idempotent_records_pkey; ALTER TABLE {0}.records \
         ADD CONSTRAINT mcp_idempotent_records_pkey PRIMARY KEY (id)",
        database.schema
    );
    database.execute(&mend).await;
    told(&database, options()).await.unwrap();
}

#[tokio::test]
async fn row_level_security_that_hides_our_records_is_named() {
    let database = Database::new().await;
    let role = unique("r");
    database
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'pass'; GRANT USAGE ON SCHEMA {{s}} TO {role}; \
             GRANT ALL ON ALL TABLES IN SCHEMA {{s}} TO {role}; \
             GRANT USAGE ON SEQUENCE {{s}}.tokens TO {role}; \
             ALTER TABLE {{s}}.records ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
        ))
        .await;
    let as_role = || options().username(&role).password("pass");
    let remedy = "row-level security policy";
    is_misconfigured(told(&database, as_role()).await, remedy);
    // May write and not read; may read and not change; may change and not remove.
    for (policy, sql) in [
        ("writing", "FOR INSERT WITH CHECK (true)"),
        ("reading", "FOR SELECT USING (true)"),
        ("changing", "FOR UPDATE USING (true)"),
    ] {
        let create = format!("CREATE POLICY {policy} ON {{s}}.records {sql}");
        database.execute(&create).await;
        is_misconfigured(told(&database, as_role()).await, remedy);
    }
    let remove = "CREATE POLICY removing ON {s}.records FOR DELETE USING (true)";
    database.execute(remove).await;
    told(&database, as_role()).await.unwrap();
    // May do all but change.
    database
        .execute("DROP POLICY changing ON {s}.records")
        .await;
    is_misconfigured(told(&database, as_role()).await, remedy);
}

#[tokio::test]
async fn a_trigger_that_swallows_our_records_is_named() {
    let database = Database::new().await;
    database
        .execute(
            "CREATE FUNCTION {s}.swallow() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN RETURN NULL; END'; CREATE TRIGGER swallow BEFORE INSERT ON {s}.records \
             FOR EACH ROW EXECUTE FUNCTION {s}.swallow()",
        )
        .await;
    is_misconfigured(told(&database, options()).await, "triggers");
}

#[tokio::test]
async fn transactions_that_begin_read_only_are_named() {
    let database = Database::new().await;
    let read_only = options().options([("default_transaction_read_only", "on")]);
    let told = told(&database, read_only).await;
    is_misconfigured(told, "default_transaction_read_only");
}

#[tokio::test]
async fn tables_of_another_version_are_named() {
    let database = Database::new().await;
    database
        .execute("INSERT INTO {s}.migrations (version) VALUES (1000)")
        .await;
    is_misconfigured(told(&database, options()).await, "version 1000");
    database.execute("DELETE FROM {s}.migrations").await;
    is_misconfigured(told(&database, options()).await, "PostgresStore::migrate");
}

/// As compatible engines have them that take the call and do nothing.
#[tokio::test]
async fn advisory_locks_that_do_not_exclude_are_refused() {
    for kind in ["bigint", "int, int"] {
        locks_that_do_not_exclude(kind).await;
    }
}

async fn locks_that_do_not_exclude(kind: &str) {
    let engine = unique("engine");
    let mut server = options().connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {engine}")))
        .execute(&mut server)
        .await
        .unwrap();
    server.close().await.unwrap();
    let engine = options().database(&engine);
    let database = Database::on(engine.clone(), engine.clone(), |pool| pool, |store| store).await;
    told(&database, engine.clone()).await.unwrap();
    database
        .execute(&format!(
            "CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_xact_lock({kind}) \
             RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        ))
        .await;
    is_misconfigured(told(&database, engine).await, "do not exclude");
}
