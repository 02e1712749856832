//! `RedisStore`, each test on servers of its own.

mod bounds;
mod cluster;
#[cfg(feature = "testing")]
mod conformance;
mod engine;
mod expiry;
mod format;
mod lost;
mod restart;
mod settings;

use std::time::Duration;

use mcp_idempotent_core::{
    Bytes, CanonicalArguments, Fingerprint, RecordId, RecordState, Scope, Store,
    store::{
        CallInfo, Claim, Completion,
        redis::{RedisStore, RedisStoreBuilder},
    },
};
use redis::aio::MultiplexedConnection;

use crate::postgres::kit::redis::{self as kit, Cluster, Server};

fn builder(url: &str) -> RedisStoreBuilder {
    RedisStore::builder().with_server(url).unwrap()
}

fn store(url: &str) -> RedisStore {
    builder(url).build().unwrap()
}

/// A connection beside the store's.
async fn connect(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// A claim on the key with this number, with a lease of one hour.
fn claim(key: u8) -> Claim {
    let mut fingerprint = [key; Fingerprint::STORED_LENGTH];
    fingerprint[0] = CanonicalArguments::VERSION;
    let mut claim = Claim::new(
        RecordId::from_bytes([key; 32]),
        Fingerprint::from_stored(&fingerprint).unwrap(),
        CallInfo::new("pay", Scope::new("alice@example.com")),
    );
    claim.key_prefix = Some("3f1c-b2a".into());
    claim.lease = Duration::from_secs(3600);
    claim
}

fn completion(response: &'static [u8]) -> Completion {
    Completion::new(
        Some(Bytes::from_static(response)),
        Duration::from_secs(3600),
    )
}

fn record_key(claim: &Claim) -> String {
    format!("{{mcp_idempotent}}:record:{}", claim.id)
}

async fn state(store: &RedisStore, claim: &Claim) -> Option<RecordState> {
    let record = store.look_up(claim).await.unwrap();
    record.map(|record| record.state)
}
