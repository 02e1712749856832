//! Every wait has a bound.

use std::time::Instant;

use mcp_idempotent_core::{OperatorStore as _, store::StoreErrorKind};

use super::*;
use crate::stores::lease;

const BOUND: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_server_that_falls_silent_is_unavailable_within_the_bound_and_serves_again_afterwards() {
    let server = Server::start();
    let store = builder(&server.url())
        .with_wait_bound(BOUND)
        .build()
        .unwrap();
    let held = lease(&store, &claim(1)).await;
    server.pause();
    let begun = Instant::now();
    let errors = [
        store.look_up(&claim(1)).await.map(drop),
        store.claim(&claim(2)).await.map(drop),
        store.renew(&held, BOUND).await.map(drop),
        store.complete(&held, completion(b"done")).await.map(drop),
        store.sweep(1).await.map(drop),
        store.list(&Default::default()).await.map(drop),
        store.verify().await,
    ];
    // Each has its own; a stopped process makes no noise that could blur a factor of five.
    assert!(begun.elapsed() < 7 * 5 * BOUND, "{:?}", begun.elapsed());
    for error in errors {
        let error = error.expect_err("nobody answers");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    }
    server.go_on();
    lease(&store, &claim(3)).await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_at_once() {
    let mut server = Server::start();
    let store = store(&server.url());
    server.kill();
    let error = store.claim(&claim(1)).await.expect_err("nobody listens");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_server_without_memory_refuses_the_claim_and_says_what_to_do() {
    let server = Server::start();
    let store = store(&server.url());
    lease(&store, &claim(1)).await;
    server.ask("CONFIG SET maxmemory 1");
    let error = store.claim(&claim(2)).await.expect_err("there is no room");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    // What is there can be read.
    assert!(store.look_up(&claim(1)).await.unwrap().is_some());
    server.ask("CONFIG SET maxmemory 0");
    lease(&store, &claim(2)).await;
}
