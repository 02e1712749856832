//! A schema with our tables and an `effects` table, and what tests do with them.

use std::{
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mcp_idempotent_core::{
    Application, Bytes, CanonicalArguments, IdempotencyKey, Identity, Record, RecordId, Scope,
    TransactionStore,
    store::{
        CallInfo, Claim, Completion, End, Ended,
        postgres::{PgTransaction, PostgresStore, PostgresStoreBuilder},
    },
};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::stores::response;
pub(super) use crate::stores::{begin, lease};

/// How often a condition is looked at before a test gives up, and the rest between two looks.
const LOOKS: u32 = 2000;
const REST: Duration = Duration::from_millis(5);

pub(super) fn options() -> PgConnectOptions {
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
        panic!(
            "these tests need Postgres: set DATABASE_URL to a database in which they may create schemas and roles"
        )
    });
    PgConnectOptions::from_str(&url).expect("DATABASE_URL is a Postgres URL")
}

pub(crate) struct Database {
    /// How a process connects that wants nothing special.
    server: PgConnectOptions,
    pub(super) pool: PgPool,
    /// For looking at the database from outside the store's pool.
    pub(super) outside: PgPool,
    pub(super) schema: String,
    pub(super) store: PostgresStore,
    /// Another process's store on the same tables, with a pool of its own.
    #[cfg_attr(
        not(feature = "testing"),
        expect(dead_code, reason = "the conformance suite alone asks for it")
    )]
    pub(super) elsewhere: PostgresStore,
}

impl Database {
    pub(crate) async fn new() -> Self {
        Self::with(|options| options, |pool| pool, |builder| builder).await
    }

    pub(super) async fn with_store(
        store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> Self {
        Self::with(|options| options, |pool| pool, store).await
    }

    pub(super) async fn with_options(
        connect: impl FnOnce(PgConnectOptions) -> PgConnectOptions,
    ) -> Self {
        Self::with(connect, |pool| pool, |builder| builder).await
    }

    pub(super) async fn with_pool(size: u32) -> Self {
        Self::with(
            |options| options,
            |pool| pool.max_connections(size),
            |builder| builder,
        )
        .await
    }

    pub(super) async fn with(
        connect: impl FnOnce(PgConnectOptions) -> PgConnectOptions,
        pool: impl FnOnce(PgPoolOptions) -> PgPoolOptions,
        store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> Self {
        let server = options();
        Self::on(server.clone(), connect(server), pool, store).await
    }

    /// The store connects with `connect`, and everybody else with `server`.
    pub(super) async fn on(
        server: PgConnectOptions,
        connect: PgConnectOptions,
        pool: impl FnOnce(PgPoolOptions) -> PgPoolOptions,
        store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> Self {
        let outside = PgPoolOptions::new()
            .max_connections(2)
            .connect_with(server.clone())
            .await
            .expect("the server answers");
        let schema = unique("t");
        let owner = PostgresStore::builder(outside.clone())
            .with_schema(&schema)
            .build()
            .unwrap();
        owner.migrate().await.unwrap();
        sqlx::query(AssertSqlSafe(format!(
            "CREATE TABLE {schema}.effects (what text NOT NULL)"
        )))
        .execute(&outside)
        .await
        .unwrap();
        let pool = pool(PgPoolOptions::new().max_connections(8)).connect_lazy_with(connect);
        let store = store(PostgresStore::builder(pool.clone()).with_schema(&schema))
            .build()
            .unwrap();
        let elsewhere = another_process(server.clone(), &schema, |store| store);
        Self {
            server,
            pool,
            outside,
            schema,
            store,
            elsewhere,
        }
    }

    /// With a store that owns its connections.
    pub(super) async fn owning(
        connect: impl FnOnce(PgConnectOptions) -> PgConnectOptions,
        connections: u32,
        store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> Self {
        let mut database = Self::new().await;
        let builder = PostgresStore::builder_with(connect(options()))
            .with_connections(connections)
            .with_schema(&database.schema);
        database.store = store(builder).build().unwrap();
        database
    }

    /// A further process's store, with settings of its own.
    pub(crate) fn another_process(
        &self,
        store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
    ) -> PostgresStore {
        another_process(self.server.clone(), &self.schema, store)
    }

    /// One whose sessions find the tables of the schema without naming it.
    pub(crate) fn another_process_at_home(&self, connections: u32) -> PostgresStore {
        let at_home = self.server.clone();
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .connect_lazy_with(at_home.options([("search_path", &self.schema)]));
        PostgresStore::builder(pool)
            .with_schema(&self.schema)
            .build()
            .unwrap()
    }

    /// `{s}` in `sql` stands for the schema.
    pub(super) fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(sql.replace("{s}", &self.schema))
    }

    pub(super) async fn execute(&self, sql: &str) {
        sqlx::raw_sql(self.sql(sql))
            .execute(&self.outside)
            .await
            .unwrap();
    }

    pub(super) async fn write(&self, connection: &mut PgConnection, what: &str) {
        sqlx::query(self.sql("INSERT INTO {s}.effects VALUES ($1)"))
            .bind(what)
            .execute(connection)
            .await
            .unwrap();
    }

    pub(super) async fn effects(&self) -> Vec<String> {
        sqlx::query_scalar(self.sql("SELECT what FROM {s}.effects ORDER BY what"))
            .fetch_all(&self.outside)
            .await
            .unwrap()
    }

    pub(super) async fn records(&self) -> i64 {
        sqlx::query_scalar(self.sql("SELECT count(*) FROM {s}.records"))
            .fetch_one(&self.outside)
            .await
            .unwrap()
    }

    /// Moves a record's times into the past.
    pub(super) async fn age(&self, id: RecordId, by: Duration) {
        let aged = sqlx::query(self.sql(
            "UPDATE {s}.records SET created_at = created_at - $2 * interval '1 microsecond', \
             lease_until = lease_until - $2 * interval '1 microsecond', \
             completed_at = completed_at - $2 * interval '1 microsecond', \
             expires_at = expires_at - $2 * interval '1 microsecond', \
             purge_at = purge_at - $2 * interval '1 microsecond' WHERE id = $1",
        ))
        .bind(id.as_bytes().as_slice())
        .bind(i64::try_from(by.as_micros()).unwrap())
        .execute(&self.outside)
        .await
        .unwrap();
        assert!(aged.rows_affected() <= 1);
    }

    pub(super) async fn begin(&self, claim: &Claim) -> PgTransaction {
        begin(&self.store, claim).await
    }

    pub(super) async fn commit(
        &self,
        transaction: PgTransaction,
        claim: &Claim,
        text: &str,
    ) -> Ended {
        self.store
            .end(transaction, Some(claim), End::Commit(result(text)))
            .await
    }

    /// One call from the claim to the end, which writes one effect.
    pub(super) async fn call(&self, claim: &Claim, text: &str) -> Ended {
        self.call_at(&self.store, claim, text).await
    }

    /// The same at another process.
    pub(super) async fn call_elsewhere(&self, claim: &Claim, text: &str) -> Ended {
        self.call_at(&self.elsewhere, claim, text).await
    }

    async fn call_at(&self, store: &PostgresStore, claim: &Claim, text: &str) -> Ended {
        let mut transaction = begin(store, claim).await;
        self.write(&mut transaction, text).await;
        let end = End::Commit(result(text));
        store.end(transaction, Some(claim), end).await
    }

    /// Which session this is.
    pub(super) async fn session<'c>(&self, of: impl sqlx::PgExecutor<'c>) -> i32 {
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()");
        pid.fetch_one(of).await.unwrap()
    }

    pub(super) async fn until_gone(&self, session: i32) {
        self.until(&format!(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {session})"
        ))
        .await;
    }

    pub(super) async fn terminate(&self, session: i32) {
        self.until(&format!("SELECT pg_terminate_backend({session})"))
            .await;
        self.until_gone(session).await;
    }

    /// Has `said`, an expression, written down for each change of a record, as its transaction commits.
    pub(super) async fn witness(&self, said: &str) {
        self.execute(&format!(
            "CREATE TABLE {{s}}.witness (said text); \
             CREATE FUNCTION {{s}}.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO {{s}}.witness VALUES ({said}); RETURN NULL; END $$; \
             CREATE CONSTRAINT TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {{s}}.records \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {{s}}.note()"
        ))
        .await;
    }

    pub(super) async fn witnessed(&self) -> Vec<String> {
        sqlx::query_scalar(self.sql("SELECT said FROM {s}.witness"))
            .fetch_all(&self.outside)
            .await
            .unwrap()
    }

    /// Waits until `condition` (a SELECT of one boolean) holds.
    pub(super) async fn until(&self, condition: &str) {
        for _ in 0..LOOKS {
            let holds: bool = sqlx::query_scalar(self.sql(condition))
                .fetch_one(&self.outside)
                .await
                .unwrap();
            if holds {
                return;
            }
            tokio::time::sleep(REST).await;
        }
        panic!("never came true: {condition}");
    }
}

fn another_process(
    server: PgConnectOptions,
    schema: &str,
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> PostgresStore {
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_lazy_with(server);
    store(PostgresStore::builder(pool).with_schema(schema))
        .build()
        .unwrap()
}

/// A transaction without a claim, with one effect in it.
pub(super) async fn begin_unclaimed(
    database: &Database,
    claim: &Claim,
    effect: &str,
) -> PgTransaction {
    let mut transaction = crate::stores::begin_unclaimed(&database.store, claim).await;
    database.write(&mut transaction, effect).await;
    transaction
}

/// A name that no other test or run uses.
pub(super) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    format!(
        "{prefix}_{}_{}_{nanos}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    )
}

pub(super) fn claim(key: &str, arguments: &str) -> Claim {
    let scope = Scope::new("tests");
    let key = IdempotencyKey::new(key).unwrap();
    let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
    let identity = Identity::new(
        &Application::new("tests"),
        &scope,
        Some(&key),
        "tool",
        &CanonicalArguments::new(arguments.as_object(), &[]),
        None,
    );
    let mut claim = Claim::new(
        identity.id,
        identity.fingerprint,
        CallInfo::new("tool", scope),
    );
    claim.key_prefix = identity.key_prefix;
    claim
}

/// The same key, asked for something else.
pub(super) fn other_arguments(first: &Claim) -> Claim {
    let mut other = first.clone();
    other.fingerprint = claim("other", r#"{"other":true}"#).fingerprint;
    other
}

pub(super) fn result(text: &str) -> Completion {
    Completion::new(
        Some(Bytes::copy_from_slice(text.as_bytes())),
        Duration::from_secs(60),
    )
}

/// The text of a completed record.
pub(super) fn text_of(record: &Record) -> String {
    String::from_utf8(response(record).to_vec()).unwrap()
}
