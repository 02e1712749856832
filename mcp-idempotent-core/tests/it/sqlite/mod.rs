//! `SqliteStore`, each test on a file of its own.

mod abandoned;
mod attempts;
#[cfg(feature = "testing")]
mod conformance;
mod ending;
mod free_key;
mod lease;
mod lease_transaction;
mod operator;
#[cfg(feature = "testing")]
mod planted;
// The conformance suite has it too.
#[path = "../../../src/testing/polls.rs"]
mod polls;
mod renewal;
mod retention;
mod schema;
mod slow_commit;
mod take_over;
mod transaction;
mod writers;

use std::time::Duration;

use self::polls::drop_at;
use mcp_idempotent_core::{
    Bytes, CanonicalArguments, Fingerprint, Record, RecordId, RecordState, Scope, Store,
    store::{
        CallInfo, Claim, Claimed, Completion, End, Ended, Lease, TransactionStore,
        sqlite::{SqliteStore, SqliteStoreBuilder, SqliteTransaction},
    },
};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};
use tempfile::TempDir;

use crate::stores::{begin, lease, response};

/// A file with the store's tables and one of the author's.
struct Database {
    directory: TempDir,
}

impl Database {
    async fn new() -> Self {
        let database = Self {
            directory: TempDir::new().unwrap(),
        };
        let store = SqliteStore::open(database.path()).await.unwrap();
        sqlx::query("CREATE TABLE payment (note TEXT NOT NULL, code TEXT UNIQUE)")
            .execute(store.pool())
            .await
            .unwrap();
        store.close().await;
        database
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("data.db")
    }

    fn pool(&self, size: u32) -> SqlitePool {
        SqlitePoolOptions::new()
            .max_connections(size)
            .connect_lazy_with(SqliteConnectOptions::new().filename(self.path()))
    }

    fn builder(&self) -> SqliteStoreBuilder {
        SqliteStore::builder(self.pool(4))
    }

    fn store(&self) -> SqliteStore {
        self.builder().build().unwrap()
    }

    /// What everybody else sees.
    async fn payments(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT note FROM payment ORDER BY rowid")
            .fetch_all(&self.pool(1))
            .await
            .unwrap()
    }

    async fn run(&self, sql: &'static str) {
        sqlx::query(sql).execute(&self.pool(1)).await.unwrap();
    }

    /// Moves a record's times into the past.
    async fn age(&self, id: RecordId, by: Duration) {
        sqlx::query(
            "UPDATE mcp_idempotent_record SET created_at = created_at - ?1, \
             lease_until = lease_until - ?1, completed_at = completed_at - ?1, \
             expires_at = expires_at - ?1, purge_at = purge_at - ?1, sweep_at = sweep_at - ?1 \
             WHERE id = ?2",
        )
        .bind(i64::try_from(by.as_micros()).unwrap())
        .bind(id.as_bytes().as_slice())
        .execute(&self.pool(1))
        .await
        .unwrap();
    }
}

/// A claim on the key with this number; `asked` tells fingerprints apart.
fn claim_asking(key: u8, asked: u8) -> Claim {
    let mut fingerprint = [asked; Fingerprint::STORED_LENGTH];
    fingerprint[0] = CanonicalArguments::VERSION;
    let mut claim = Claim::new(
        RecordId::from_bytes([key; 32]),
        Fingerprint::from_stored(&fingerprint).unwrap(),
        CallInfo::new("pay", Scope::new("alice@example.com")),
    );
    claim.key_prefix = Some("3f1c-b2a".into());
    claim
}

fn claim(key: u8) -> Claim {
    claim_asking(key, key)
}

fn completion(response: &'static [u8]) -> Completion {
    Completion::new(
        Some(Bytes::from_static(response)),
        Duration::from_secs(3600),
    )
}

async fn begin_unclaimed(store: &SqliteStore) -> SqliteTransaction {
    crate::stores::begin_unclaimed(store, &claim(1)).await
}

async fn state(store: &SqliteStore, claim: &Claim) -> Option<RecordState> {
    let record = store.look_up(claim).await.unwrap();
    record.map(|record| record.state)
}

async fn pay(connection: &mut SqliteConnection, note: &str) {
    sqlx::query("INSERT INTO payment (note) VALUES (?1)")
        .bind(note)
        .execute(connection)
        .await
        .unwrap();
}

/// One whole call: claim, effect, commit.
async fn call(store: &SqliteStore, claim: &Claim, note: &str, response: &'static [u8]) {
    let mut transaction = begin(store, claim).await;
    pay(&mut transaction, note).await;
    let ended = store
        .end(transaction, Some(claim), End::Commit(completion(response)))
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

/// The record that a new call under this claim would find.
async fn found(store: &SqliteStore, claim: &Claim) -> Record {
    match store.begin(&claim.call, Some(claim)).await.unwrap() {
        Claimed::Found(record) => record,
        other => panic!("expected a record, found {other:?}"),
    }
}

async fn is_free(store: &SqliteStore, claim: &Claim) -> bool {
    let begun = store.begin(&claim.call, Some(claim)).await.unwrap();
    if let Claimed::New(transaction) = begun {
        store.end(transaction, Some(claim), End::RollBack).await;
        return true;
    }
    false
}

/// Waits for a condition without a fixed sleep.
async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        while !condition().await {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("the condition came true");
}
