//! What is refused at start-up.

use mcp_idempotent_core::{
    OperatorStore as _,
    store::{StoreError, StoreErrorKind},
};

use super::*;
use crate::stores::lease;

fn assert_misconfigured(error: &StoreError, remedy: &str) {
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
    assert!(error.to_string().contains(remedy), "{error}");
}

#[tokio::test]
async fn a_server_that_may_evict_records_is_refused_with_the_remedy() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let server = Server::start_with(&["maxmemory-policy", policy]);
        let error = RedisStore::open(server.url()).await.expect_err(policy);
        assert_misconfigured(&error, "set `maxmemory-policy noeviction`");
        server.ask("CONFIG SET maxmemory-policy noeviction");
        RedisStore::open(server.url()).await.unwrap();
    }
}

#[tokio::test]
async fn one_node_of_a_cluster_that_may_evict_records_is_enough_to_refuse_it() {
    let cluster = Cluster::start(3, 0);
    RedisStore::open(cluster.url()).await.unwrap();
    cluster.primaries[2].ask("CONFIG SET maxmemory-policy allkeys-random");
    let error = RedisStore::open(cluster.url()).await.expect_err("a node");
    assert_misconfigured(&error, "allkeys-random");
}

#[tokio::test]
async fn a_user_with_too_few_rights_is_told_which() {
    let server = Server::start();
    server.ask("ACL SETUSER few on >few ~* &* +@all -eval -evalsha");
    let url = server.url().replace("redis://", "redis://few:few@");
    let error = RedisStore::open(url).await.expect_err("no scripts");
    assert_misconfigured(&error, "rights");
    server.ask("ACL SETUSER none on >none ~other:* &* +@all");
    let url = server.url().replace("redis://", "redis://none:none@");
    let store = store(&url);
    let error = store.claim(&claim(1)).await.expect_err("no keys");
    assert_misconfigured(&error, "rights");
}

/// As the page of the module lists them.
#[tokio::test]
async fn the_rights_that_the_page_lists_are_enough() {
    let page = include_str!("../../../src/store/redis/mod.rs");
    let rights = page
        .lines()
        .find_map(|line| line.strip_prefix("//! ACL SETUSER idempotency "))
        .expect("the page lists the rights");
    let server = Server::start();
    let set = server.ask(&format!("ACL SETUSER idempotency {rights}"));
    assert_eq!(set, "OK");
    let url = server
        .url()
        .replace("redis://", "redis://idempotency:secret@");
    let store = RedisStore::open(url).await.unwrap();
    let lease = lease(&store, &claim(1)).await;
    store.renew(&lease, claim(1).lease).await.unwrap();
    store.complete(&lease, completion(b"done")).await.unwrap();
    store.show(lease.id).await.unwrap();
    assert_eq!(store.list(&Default::default()).await.unwrap().len(), 1);
    assert_eq!(store.sweep(10).await.unwrap(), 0);
    let mut brief = claim(2);
    (brief.lease, brief.in_doubt_retention) = (Duration::from_micros(1), Duration::ZERO);
    crate::stores::lease(&store, &brief).await;
    assert_eq!(store.sweep(10).await.unwrap(), 1);
}

#[tokio::test]
async fn a_replica_is_not_taken_for_the_primary() {
    let (primary, replica) = (Server::start(), Server::start());
    let store = store(&replica.url());
    lease(&store, &claim(1)).await;
    replica.ask(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let error = store.claim(&claim(2)).await.expect_err("it is a replica");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    let error = RedisStore::open(replica.url())
        .await
        .expect_err("a replica");
    assert!(format!("{error:?}").contains("replica"), "{error:?}");
    replica.ask("REPLICAOF NO ONE");
    lease(&store, &claim(2)).await;
}

#[test]
fn settings_that_cannot_hold_are_refused() {
    let nobody = RedisStore::builder().build().expect_err("no server");
    assert_misconfigured(&nobody, "with_server");
    let nowhere = RedisStore::builder()
        .with_server("nowhere")
        .expect_err("no URL");
    assert_eq!(nowhere.kind(), StoreErrorKind::Misconfigured);
    for prefix in ["", "{a}", "a b", &"x".repeat(41)] {
        let error = builder("redis://127.0.0.1")
            .with_key_prefix(prefix)
            .build()
            .expect_err(prefix);
        assert_misconfigured(&error, "cannot begin a key");
    }
}

#[tokio::test]
async fn several_servers_that_are_no_cluster_are_refused() {
    let servers = [Server::start(), Server::start()];
    let store = builder(&servers[0].url())
        .with_server(servers[1].url())
        .unwrap()
        .build()
        .unwrap();
    let error = store.claim(&claim(1)).await.expect_err("two primaries");
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error:?}");
}

#[tokio::test]
async fn stores_with_two_prefixes_share_nothing() {
    let server = Server::start();
    let other = builder(&server.url())
        .with_key_prefix("other")
        .build()
        .unwrap();
    lease(&store(&server.url()), &claim(1)).await;
    lease(&other, &claim(1)).await;
}
