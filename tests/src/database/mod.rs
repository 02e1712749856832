//! A database of a test's own, of either kind.

mod postgres;
mod sqlite;

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_tower::{OperatorStore, TransactionStore};

pub use self::{
    postgres::{Postgres, options as postgres_options},
    sqlite::Sqlite,
};

/// A record, as the tables have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the states of a stored row")]
pub enum Stored {
    InProgress,
    /// With a result.
    Completed,
    /// The result was too large to keep.
    TooLarge,
    InDoubt,
    Tombstone,
    /// The key is free; only where its next attempt comes from is kept.
    Released,
}

/// A database with our tables and an `effects` table, and what tests do with them. SQL that names
/// no schema means this test's own.
pub trait Database: Clone + Send + Sync + 'static {
    type Connection: sqlx::Connection<Database: sqlx::Database<Connection = Self::Connection>>;
    type Store: TransactionStore<Connection = Self::Connection> + OperatorStore + Clone;

    const NAME: &'static str;

    /// The database's clock, in microseconds.
    const CLOCK: &'static str;

    /// When the only record expires, in microseconds.
    const EXPIRY: &'static str;

    /// Takes our tables away.
    const DROP_RECORDS: &'static str;

    /// Made anew, and empty.
    fn create() -> impl Future<Output = Self> + Send;

    /// A store on a pool of its own, as another process would have it.
    fn store(&self, connections: u32) -> Self::Store {
        self.store_that_waits(connections, Duration::from_secs(10))
    }

    /// As [`store`](Self::store); a call waits for its turn at most this long.
    fn store_that_waits(&self, connections: u32, bound: Duration) -> Self::Store;

    /// As [`store`](Self::store); leases may be as short as this.
    fn store_for_lease(&self, connections: u32, lease: Duration) -> Self::Store;

    /// What a server process needs to open the same database.
    fn address(&self) -> String;

    /// Opens what [`address`](Self::address) gave.
    fn open(address: &str) -> impl Future<Output = Self> + Send;

    /// Runs SQL as a handler would.
    fn run<'c>(
        connection: &'c mut Self::Connection,
        sql: &'c str,
    ) -> BoxFuture<'c, Result<(), sqlx::Error>>;

    /// Runs SQL from outside, on a connection that no store has.
    fn execute(&self, sql: &str) -> impl Future<Output = ()> + Send;

    /// The single integer that a query answers, from outside.
    fn integer(&self, sql: &str) -> impl Future<Output = i64> + Send;

    fn effects(&self) -> impl Future<Output = Vec<String>> + Send;

    fn records(&self) -> impl Future<Output = Vec<Stored>> + Send;

    /// Moves the times of all records into the past.
    fn age(&self, by: Duration) -> impl Future<Output = ()> + Send;

    /// Closes what stores were given, under their feet.
    fn close(&self, store: &Self::Store) -> impl Future<Output = ()> + Send;
}

/// What handlers do here: they write one effect.
pub async fn effect<D: Database>(
    connection: &mut D::Connection,
    name: &str,
) -> Result<(), sqlx::Error> {
    assert!(!name.contains('\''), "a name that needs no escaping");
    D::run(
        connection,
        &format!("INSERT INTO effects (name) VALUES ('{name}')"),
    )
    .await
}

/// A name that no other test or run uses.
pub fn unique(prefix: &str) -> String {
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
