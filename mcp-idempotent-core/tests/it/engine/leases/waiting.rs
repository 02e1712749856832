//! Calls of one key that wait in one process, while another process has the key.

use mcp_idempotent_core::{ResultKind, Wait};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    super::{Outcome, Reply, Server, own, replayed, succeed, until},
    CONFLICT, IN_PROGRESS, elsewhere, faulty, never, settle, start,
    store::{Fault, Faulty},
};

/// Starts a call that uses the key for something else.
fn start_other(server: &Server<Faulty>) -> JoinHandle<Outcome> {
    let server = server.clone();
    tokio::spawn(async move {
        let other = server.request(server.identity(Some("k"), r#"{"other":true}"#));
        server.call_as(other, never()).await
    })
}

/// Who holds it may only look for the record. A retry that were told of a conflict would be sent under a
/// new key, and act twice.
#[tokio::test(start_paused = true)]
async fn a_key_that_somebody_holds_is_a_conflict_for_nobody() {
    let server = faulty(|_| {});
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    let store = server.engine.store();
    store.claim.set(Fault::Held);
    let other = start_other(&server);
    settle().await;
    let retry = start(&server, "k", never());
    settle().await;
    assert!(!retry.is_finished());
    let impatient = server.under(|policy| policy.wait = Wait::Reject);
    assert_eq!(impatient.call("k", never()).await, IN_PROGRESS);
    store.claim.set(Fault::None);
    assert_eq!(other.await.unwrap(), CONFLICT);
    assert_eq!(retry.await.unwrap(), replayed("one"));
}

/// The same, for those who waited before it was found out.
#[tokio::test(start_paused = true)]
async fn those_who_wait_behind_another_call_ask_the_store_when_somebody_holds_the_key() {
    let server = faulty(|_| {});
    assert_eq!(server.call("k", succeed("one")).await, own("one"));
    let store = server.engine.store();
    store.claim.set(Fault::Waits);
    let other = start_other(&server);
    settle().await;
    let retry = start(&server, "k", never());
    until(|| server.engine.waiting() == 1).await;
    store.claim.set(Fault::Held);
    until(|| server.engine.waiting() == 0).await;
    settle().await;
    assert!(!retry.is_finished());
    store.claim.set(Fault::None);
    assert_eq!(other.await.unwrap(), CONFLICT);
    assert_eq!(retry.await.unwrap(), replayed("one"));
}

#[tokio::test(start_paused = true)]
async fn a_call_for_something_else_does_not_end_the_wait_for_the_one_that_runs() {
    let server = faulty(|_| {});
    let elsewhere = elsewhere(&server);
    let (end, ended) = oneshot::channel::<Reply>();
    let running = start(&elsewhere, "k", async { ended.await.unwrap() });
    until(|| elsewhere.executions() == 1).await;
    let store = server.engine.store();
    store.claim.set(Fault::Waits);
    let other = start_other(&server);
    settle().await;
    let duplicate = start(&server, "k", never());
    until(|| server.engine.waiting() == 1).await;
    store.claim.set(Fault::None);
    assert_eq!(other.await.unwrap(), CONFLICT);
    settle().await;
    assert!(!duplicate.is_finished());
    end.send(Reply::new(ResultKind::Success, "one"))
        .ok()
        .unwrap();
    assert_eq!(running.await.unwrap(), own("one"));
    assert_eq!(duplicate.await.unwrap(), replayed("one"));
}
