//! A store of its own, and the program that is told of it.

use std::{
    env,
    path::Path,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tests::kit::redis::Server;
use mcp_idempotent_tower::{PostgresStore, RedisStore, SqliteStore};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool, SqlitePool};
use tempfile::TempDir;

/// A server that is built beside the program.
const NEIGHBOUR: &str = env!("CARGO_BIN_EXE_ledger-server");

pub(super) struct Place {
    directory: TempDir,
    pub(super) store: Vec<String>,
    /// Ends with the place.
    pub(super) redis: Option<Server>,
}

/// What the program did.
#[derive(Debug)]
pub(super) struct Did {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl Place {
    pub(super) fn nowhere() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
            store: Vec::new(),
            redis: None,
        }
    }

    pub(super) fn at(url: &str) -> Self {
        Self {
            store: vec!["--store".to_owned(), url.to_owned()],
            ..Self::nowhere()
        }
    }

    pub(super) fn empty_sqlite() -> Self {
        let mut place = Self::nowhere();
        let url = format!(
            "sqlite://{}",
            place.directory.path().join("data.db").display()
        );
        place.store = vec!["--store".to_owned(), url];
        place
    }

    pub(super) async fn sqlite() -> (Self, SqliteStore) {
        let place = Self::empty_sqlite();
        let store = SqliteStore::open(&place.store[1]).await.unwrap();
        (place, store)
    }

    pub(super) fn empty_postgres() -> Self {
        static SCHEMAS: AtomicU32 = AtomicU32::new(0);
        let number = SCHEMAS.fetch_add(1, Ordering::Relaxed);
        let schema = format!("operator_{}_{number}", std::process::id());
        let mut place = Self::at(&env::var("DATABASE_URL").expect("DATABASE_URL names a database"));
        place.store.extend(["--schema".to_owned(), schema]);
        place
    }

    pub(super) async fn postgres() -> (Self, PostgresStore) {
        let place = Self::empty_postgres();
        let store = PostgresStore::builder(place.pool().await)
            .with_schema(place.schema())
            .build()
            .unwrap();
        store.migrate().await.unwrap();
        (place, store)
    }

    pub(super) fn schema(&self) -> &str {
        &self.store[3]
    }

    pub(super) async fn pool(&self) -> PgPool {
        PgPool::connect(&self.store[1]).await.unwrap()
    }

    pub(super) fn redis() -> (Self, RedisStore) {
        Self::redis_with(&[])
    }

    pub(super) fn redis_with(settings: &[&str]) -> (Self, RedisStore) {
        let server = Server::start_with(settings);
        let mut place = Self::at(&server.url());
        let store = RedisStore::builder().with_server(server.url()).unwrap();
        place.redis = Some(server);
        (place, store.build().unwrap())
    }

    pub(super) fn write(&self, name: &str, text: &str) -> String {
        let file = self.directory.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    /// Removes the SQLite file.
    pub(super) fn remove(&self) {
        std::fs::remove_file(self.store[1].trim_start_matches("sqlite://")).unwrap();
    }

    /// Changes the SQLite file behind the store's back.
    pub(super) async fn execute(&self, sql: &'static str) {
        let pool = SqlitePool::connect(&self.store[1]).await.unwrap();
        sqlx::query(AssertSqlSafe(sql))
            .execute(&pool)
            .await
            .unwrap();
    }

    pub(super) fn run(&self, arguments: &[&str]) -> Did {
        let name = format!("mcp-idempotent{}", env::consts::EXE_SUFFIX);
        let program = Path::new(NEIGHBOUR).with_file_name(name);
        assert!(
            program.exists(),
            "{} is missing: run the tests of the whole workspace, or `cargo build -p mcp-idempotent-tower --features cli-without-tls`",
            program.display()
        );
        let did = Command::new(program)
            .args(arguments)
            .args(&self.store)
            .env_remove("MCP_IDEMPOTENT_STORE")
            .env_remove("MCP_IDEMPOTENT_SECRET")
            .output()
            .unwrap();
        Did {
            code: did.status.code().expect("it was not killed"),
            out: String::from_utf8(did.stdout).unwrap(),
            err: String::from_utf8(did.stderr).unwrap(),
        }
    }

    /// The same, printed as JSON.
    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        let did = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(did.code, 0, "{did:?}");
        serde_json::from_str(&did.out).unwrap()
    }
}
