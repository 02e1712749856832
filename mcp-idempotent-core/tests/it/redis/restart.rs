//! Servers that die.

use mcp_idempotent_core::store::{Claimed, LeaseEnd};

use super::*;
use crate::stores::lease;

#[tokio::test]
async fn a_kill_and_a_restart_with_a_file_that_is_always_flushed_lose_nothing() {
    let mut server = Server::start_with(&["appendfsync", "always"]);
    let store = store(&server.url());
    let (running, done) = (
        lease(&store, &claim(1)).await,
        lease(&store, &claim(2)).await,
    );
    store.complete(&done, completion(b"done")).await.unwrap();
    server.kill();
    let away = store.claim(&claim(3)).await.expect_err("it is away");
    assert!(away.is_transient(), "{away:?}");
    server.start_again();
    let claimed = store.claim(&claim(1)).await.unwrap();
    assert!(matches!(claimed, Claimed::Found(_)), "{claimed:?}");
    let record = store.look_up(&claim(2)).await.unwrap().expect("a record");
    assert_eq!(crate::stores::response(&record), b"done");
    let third = lease(&store, &claim(3)).await;
    assert!(third.token > done.token, "tokens grow");
    let completed = store.complete(&running, completion(b"late")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
}

/// The page on guarantees says so.
#[tokio::test]
async fn without_an_append_only_file_a_restart_forgets_and_no_token_comes_twice() {
    let mut server = Server::start_with(&["appendonly", "no"]);
    let store = store(&server.url());
    let lost = lease(&store, &claim(1)).await;
    server.kill();
    server.start_again();
    let again = lease(&store, &claim(1)).await;
    assert!(again.token > lost.token, "tokens grow");
    assert_eq!(again.attempts, 1);
    let late = store.complete(&lost, completion(b"late")).await;
    assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
}

#[tokio::test]
async fn connections_that_are_cut_between_two_calls_are_replaced() {
    let server = Server::start();
    let store = store(&server.url());
    lease(&store, &claim(1)).await;
    for key in 2..6 {
        server.ask("CLIENT KILL TYPE normal SKIPME yes");
        lease(&store, &claim(key)).await;
    }
}

#[tokio::test]
async fn a_server_that_has_forgotten_the_scripts_is_told_them_again() {
    let server = Server::start();
    let store = store(&server.url());
    lease(&store, &claim(1)).await;
    server.ask("SCRIPT FLUSH");
    lease(&store, &claim(2)).await;
}
