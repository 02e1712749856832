//! The servers that write through other drivers, each in a process and a database of its own.

use std::{
    process::Stdio,
    sync::atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::core::sqlx::{self, AssertSqlSafe, Executor as _, PgPool};
use rmcp::{
    ServiceError,
    model::{CallToolRequestParams, CallToolResult, RequestMetaObject},
};
use serde_json::json;
use tokio::{process::Child, time::timeout};

use super::{Client, PATIENCE, connect, database_url, example, is_replay};

const DRIVERS: [&str; 3] = ["tokio-postgres", "diesel", "sea-orm"];
/// Those that complete their attempt themselves.
const OTHERS: [&str; 2] = ["tokio-postgres", "diesel"];

/// A database of one server, which is dropped at the end.
struct Database {
    url: String,
    name: String,
    pool: PgPool,
}

impl Database {
    async fn new(driver: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(
            "{}_{}_{count}",
            driver.replace('-', "_"),
            std::process::id()
        );
        let server = PgPool::connect(&database_url()).await.unwrap();
        server
            .execute(AssertSqlSafe(format!(
                "DROP DATABASE IF EXISTS {name} (FORCE)"
            )))
            .await
            .unwrap();
        server
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .await
            .unwrap();
        let options = server.connect_options().as_ref().clone().database(&name);
        let url = with_database(&database_url(), &name);
        let pool = PgPool::connect_with(options).await.unwrap();
        pool.execute("CREATE TABLE charges (id bigserial PRIMARY KEY, customer text NOT NULL)")
            .await
            .unwrap();
        Self { url, name, pool }
    }

    async fn server(&self, driver: &str) -> (Client, Child) {
        let mut program = example("other_drivers");
        program.args([driver, &self.url]).stderr(Stdio::null());
        connect(program).await
    }

    async fn charges(&self) -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM charges");
        count.fetch_one(&self.pool).await.unwrap()
    }

    async fn until(&self, condition: &'static str) {
        let holds = async {
            while !sqlx::query_scalar::<_, bool>(condition)
                .fetch_one(&self.pool)
                .await
                .unwrap()
            {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, holds).await.expect(condition);
    }

    /// As if the leases had not been renewed for their whole time.
    async fn lapse(&self) {
        let lapsed =
            "UPDATE mcp_idempotent.records SET lease_until = clock_timestamp() WHERE state = 0";
        assert_eq!(self.pool.execute(lapsed).await.unwrap().rows_affected(), 1);
    }

    async fn end(self) {
        self.pool.close().await;
        let server = PgPool::connect(&database_url()).await.unwrap();
        let dropped = format!("DROP DATABASE {} (FORCE)", self.name);
        server.execute(AssertSqlSafe(dropped)).await.unwrap();
    }
}

/// The URL with another database in it.
fn with_database(url: &str, name: &str) -> String {
    let (url, parameters) = url
        .split_once('?')
        .map_or((url, None), |(url, rest)| (url, Some(rest)));
    let (server, _) = url.rsplit_once('/').unwrap();
    let parameters = parameters
        .map(|rest| format!("?{rest}"))
        .unwrap_or_default();
    format!("{server}/{name}{parameters}")
}

async fn charge(client: &Client, key: &str) -> CallToolResult {
    try_charge(client, key).await.unwrap()
}

async fn try_charge(client: &Client, key: &str) -> Result<CallToolResult, ServiceError> {
    let mut meta = RequestMetaObject::new();
    meta.insert("idempotency-key".into(), key.into());
    let mut params = CallToolRequestParams::new("charge_card");
    params.arguments = json!({ "customer": "ada" }).as_object().cloned();
    params.meta = Some(meta);
    timeout(PATIENCE, client.peer().call_tool(params))
        .await
        .unwrap()
}

/// Somebody waits for a lock that somebody else holds.
const WAITS: &str = "SELECT count(*) > 0 FROM pg_stat_activity \
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

#[tokio::test]
async fn a_retry_through_any_driver_gets_the_first_receipt_and_charges_nothing() {
    for driver in DRIVERS {
        let database = Database::new(driver).await;
        let (client, _server) = database.server(driver).await;
        let first = charge(&client, "one").await;
        let retry = charge(&client, "one").await;
        assert_eq!(
            first.structured_content,
            Some(json!({ "id": 1 })),
            "{driver}: {first:?}"
        );
        assert!(!is_replay(&first), "{driver}: {first:?}");
        assert!(is_replay(&retry), "{driver}: {retry:?}");
        assert_eq!(retry.structured_content, first.structured_content);
        assert_eq!(database.charges().await, 1, "{driver}");
        let another = charge(&client, "two").await;
        assert!(!is_replay(&another), "{driver}: {another:?}");
        assert_eq!(database.charges().await, 2, "{driver}");
        database.end().await;
    }
}

/// It is killed after the effect was written, while it waits for its own completion.
#[tokio::test]
async fn a_kill_before_the_commit_leaves_nothing_and_the_retry_charges_once() {
    for driver in OTHERS {
        let database = Database::new(driver).await;
        let (client, mut server) = database.server(driver).await;
        let mut holder = database.pool.begin().await.unwrap();
        holder
            .execute("LOCK TABLE charges IN SHARE MODE")
            .await
            .unwrap();
        let killed = async {
            database.until(WAITS).await;
            // The effect comes first. Now it may be written, and the completion has to wait.
            let mut record = database.pool.begin().await.unwrap();
            record
                .execute("SELECT FROM mcp_idempotent.records FOR UPDATE")
                .await
                .unwrap();
            holder.rollback().await.unwrap();
            database
                .until(
                    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() \
                AND wait_event_type = 'Lock' AND query LIKE 'WITH asked%'",
                )
                .await;
            server.kill().await.unwrap();
            record.rollback().await.unwrap();
        };
        let (answer, ()) = tokio::join!(try_charge(&client, "one"), killed);
        answer.unwrap_err();
        database
            .until(
                "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() \
            AND query LIKE 'WITH asked%'",
            )
            .await;
        assert_eq!(database.charges().await, 0, "{driver}");
        database.lapse().await;
        let (client, _server) = database.server(driver).await;
        let retry = charge(&client, "one").await;
        assert!(!is_replay(&retry), "{driver}: {retry:?}");
        assert_eq!(database.charges().await, 1, "{driver}");
        database.end().await;
    }
}

/// Another process takes the call over while the first one waits to write its effect.
#[tokio::test]
async fn an_attempt_that_was_taken_over_commits_nothing() {
    for driver in OTHERS {
        let database = Database::new(driver).await;
        let (first, _first) = database.server(driver).await;
        let (second, _second) = database.server(driver).await;
        let mut holder = database.pool.begin().await.unwrap();
        holder
            .execute("LOCK TABLE charges IN SHARE MODE")
            .await
            .unwrap();
        let (late, in_time) = tokio::join!(try_charge(&first, "one"), async {
            database.until(WAITS).await;
            database.lapse().await;
            let (in_time, ()) = tokio::join!(charge(&second, "one"), async {
                database
                    .until(
                        "SELECT count(*) = 2 FROM pg_stat_activity \
                    WHERE datname = current_database() AND wait_event_type = 'Lock'",
                    )
                    .await;
                holder.rollback().await.unwrap();
            });
            in_time
        });
        assert_eq!(database.charges().await, 1, "{driver}");
        assert_eq!(in_time.is_error, Some(false), "{driver}: {in_time:?}");
        // It is told that the outcome is unknown, unless the other one's result is there already.
        match &late {
            Ok(late) => assert_eq!(
                late.structured_content, in_time.structured_content,
                "{driver}"
            ),
            Err(told) => assert!(
                told.to_string().contains("is not recorded"),
                "{driver}: {told}"
            ),
        }
        let retry = charge(&first, "one").await;
        assert_eq!(retry.structured_content, in_time.structured_content);
        database.end().await;
    }
}

/// sea-orm writes through the call's own transaction.
#[tokio::test]
async fn what_is_written_through_sea_orm_commits_only_with_the_record() {
    let database = Database::new("sea-orm").await;
    let (client, _server) = database.server("sea-orm").await;
    charge(&client, "one").await;
    let refuses = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
        $$ BEGIN RAISE 'no more records'; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT ON mcp_idempotent.records \
        FOR EACH ROW EXECUTE FUNCTION refuse()";
    database.pool.execute(sqlx::raw_sql(refuses)).await.unwrap();
    try_charge(&client, "two").await.unwrap_err();
    assert_eq!(database.charges().await, 1);
    database.end().await;
}
