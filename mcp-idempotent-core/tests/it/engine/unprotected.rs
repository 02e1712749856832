//! Calls that may run unprotected while the store is unavailable.

use std::time::Duration;

use mcp_idempotent_core::{
    Begun, Engine, OnDoubt, ResultKind,
    store::{Audit, Completion, OperatorStore, Resolution},
};

use super::{
    Outcome, Reply, Server,
    leases::store::{Fault, Faulty},
    secret::{B, process},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn fail_open(server: &Server<Faulty>, on_doubt: OnDoubt) -> Server<Faulty> {
    server.under(|policy| {
        policy.on_doubt = on_doubt;
        policy.run_unprotected_when_store_is_unavailable = true;
    })
}

async fn leave_in_doubt(server: &Server<Faulty>, key: &str) {
    let handler = async { Reply::new(ResultKind::ProtocolError, "did it act?") };
    let left = server.call(key, handler).await;
    assert!(
        matches!(&left, Outcome::LeftInDoubt(text, _) if text == "did it act?"),
        "{left:?}"
    );
}

/// The guard was found in doubt and taken over; then the store goes away.
#[tokio::test]
async fn a_call_whose_guard_was_in_doubt_does_not_run_unprotected() {
    let store = Faulty::default();
    let old = process(&store, None, None);
    let new = fail_open(&process(&store, Some(B), Some(None)), OnDoubt::Rerun);
    new.engine.verify_secret().await.unwrap();
    leave_in_doubt(&old, "pay").await;
    store.take_over.set(Fault::Waits);
    let identity = new.identity(Some("pay"), "{}");
    let begin = new.engine.begin_lease(new.request(identity));
    tokio::pin!(begin);
    tokio::select! {
        _ = &mut begin => panic!("it takes over"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    store.claim.set(Fault::Fails);
    store.take_over.set(Fault::None);
    let begun = begin.await;
    assert!(!matches!(begun, Begun::FailOpen), "{begun:?}");
}

/// Found in doubt, another was faster, and then the store goes away.
#[tokio::test]
async fn a_call_seen_in_doubt_does_not_run_unprotected() {
    let store = Faulty::default();
    let server = Server::on(store.clone(), |_| {});
    let server = fail_open(&server, OnDoubt::Rerun);
    leave_in_doubt(&server, "pay").await;
    store.take_over.set(Fault::Waits);
    let identity = server.identity(Some("pay"), "{}");
    let id = identity.id;
    let begin = server.engine.begin_lease(server.request(identity));
    tokio::pin!(begin);
    tokio::select! {
        _ = &mut begin => panic!("it takes over"),
        () = tokio::time::sleep(Duration::from_millis(50)) => {}
    }
    let info = store.show(id).await.unwrap().unwrap();
    let done = Completion::new(Some("it was paid".into()), DAY);
    let resolution = Resolution::Committed(done);
    let audit = Audit::new("op", "looked").unwrap();
    store
        .resolve(id, info.token, &resolution, &audit)
        .await
        .unwrap();
    store.claim.set(Fault::Fails);
    store.take_over.set(Fault::None);
    let begun = begin.await;
    assert!(!matches!(begun, Begun::FailOpen), "{begun:?}");
}

/// The store has been away for so long that the secret is no longer taken as confirmed.
#[tokio::test(start_paused = true)]
async fn beside_a_call_that_runs_in_this_process_nothing_runs_without_protection() {
    let store = Faulty::default();
    let server = fail_open(&Server::on(store.clone(), |_| {}), OnDoubt::Fail);
    let same = || server.request(server.identity(Some("pay"), "{}"));
    let Begun::Attempt(_running) = server.engine.begin_lease(same()).await else {
        panic!("it is the first");
    };
    store.look_up.set(Fault::Fails);
    tokio::time::advance(Engine::<Faulty>::SECRET_CHECKED_EVERY * 3).await;
    let duplicate = server.engine.begin_lease(same()).await;
    assert!(matches!(duplicate, Begun::Answer(_)), "{duplicate:?}");
    let other = server.request(server.identity(Some("another key"), "{}"));
    let alone = server.engine.begin_lease(other).await;
    assert!(matches!(alone, Begun::FailOpen), "{alone:?}");
}
