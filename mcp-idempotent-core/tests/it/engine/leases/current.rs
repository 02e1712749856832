//! A handler asks whether it still has its lease.

use std::error::Error as _;

use mcp_idempotent_core::{
    CallInfo, LeaseHandle, NotCurrent, OnDoubt, RecordState, ResultKind, Scope,
    store::{Audit, Claim, Resolution, Store},
};
use tokio::time::{Instant, advance, sleep};

use super::{
    super::{Reply, own, succeed},
    IN_DOUBT, elsewhere, faulty, seconds,
    store::Fault,
};

async fn done() -> Reply {
    Reply::new(ResultKind::Success, "one")
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_current_is_renewed_at_once() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let identity = server.identity(Some("k"), "{}");
    let claim = Claim::new(
        identity.id,
        identity.fingerprint,
        CallInfo::new("tool", Scope::new("alice")),
    );
    let handler = async |handle: LeaseHandle| {
        advance(seconds(30)).await;
        handle.ensure_current().await.unwrap();
        let record = server
            .engine
            .store()
            .look_up(&claim)
            .await
            .unwrap()
            .unwrap();
        let RecordState::InProgress { lease_remaining } = record.state else {
            panic!("it runs");
        };
        assert_eq!(lease_remaining, seconds(120));
        done().await
    };
    assert_eq!(server.call_handled("k", handler).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_an_operator_has_resolved_is_not_current() {
    for resolution in [Resolution::Release, Resolution::NotCommitted] {
        let server = faulty(|_| {});
        let handler = async |handle: LeaseHandle| {
            let id = server.identity(Some("k"), "{}").id;
            let audit = Audit::new("ada", "the machine burns").unwrap();
            let token = handle.token();
            server
                .engine
                .resolve(id, token, &resolution, &audit)
                .await
                .unwrap();
            assert!(matches!(
                handle.ensure_current().await,
                Err(NotCurrent::Fenced)
            ));
            assert!(handle.is_lost());
            handle.lost().await;
            done().await
        };
        assert_eq!(server.call_handled("k", handler).await, IN_DOUBT);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lapsed_is_not_current_even_if_nobody_has_noticed_yet() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let handler = async |handle: LeaseHandle| {
        // As after a pause of the whole process.
        advance(seconds(121)).await;
        assert!(matches!(
            handle.ensure_current().await,
            Err(NotCurrent::Fenced)
        ));
        done().await
    };
    assert_eq!(server.call_handled("k", handler).await, IN_DOUBT);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_taken_over_is_not_current() {
    let server = faulty(|policy| {
        policy.lease = seconds(120);
        policy.on_doubt = OnDoubt::Rerun;
    });
    let elsewhere = elsewhere(&server);
    let handler = async |handle: LeaseHandle| {
        server.engine.store().renew.set(Fault::Fails);
        sleep(seconds(150)).await;
        server.engine.store().renew.set(Fault::None);
        // In another task: a call from inside its own handler would wait for itself.
        let theirs = super::start(&elsewhere, "k", succeed("theirs"));
        assert_eq!(theirs.await.unwrap(), own("theirs"));
        assert!(matches!(
            handle.ensure_current().await,
            Err(NotCurrent::Fenced)
        ));
        done().await
    };
    assert_eq!(server.call_handled("k", handler).await, super::ASK_AGAIN);
    assert_eq!(
        server.call("k", super::never()).await,
        super::super::replayed("theirs")
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_cannot_confirm_it_and_is_not_waited_for_beyond_the_lease() {
    let server = faulty(|policy| policy.lease = seconds(120));
    let handler = async |handle: LeaseHandle| {
        let store = server.engine.store();
        store.renew.set(Fault::Fails);
        let Err(unconfirmed) = handle.ensure_current().await else {
            panic!("the store is away");
        };
        assert!(matches!(unconfirmed, NotCurrent::Unconfirmed(_)));
        assert_eq!(unconfirmed.source().unwrap().to_string(), "away");
        store.renew.set(Fault::Swallows);
        let asked = Instant::now();
        assert!(matches!(
            handle.ensure_current().await,
            Err(NotCurrent::Unconfirmed(_))
        ));
        assert!(asked.elapsed() <= seconds(120));
        store.renew.set(Fault::None);
        done().await
    };
    assert_eq!(server.call_handled("k", handler).await, IN_DOUBT);

    // It can be away for a moment.
    let handler = async |handle: LeaseHandle| {
        let store = server.engine.store();
        store.renew.set(Fault::Fails);
        assert!(handle.ensure_current().await.is_err());
        assert!(!handle.is_lost());
        store.renew.set(Fault::None);
        handle.ensure_current().await.unwrap();
        done().await
    };
    assert_eq!(server.call_handled("other", handler).await, own("one"));
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_outlives_its_attempt_is_not_current() {
    let server = faulty(|_| {});
    let mut kept = None;
    let handler = async |handle: LeaseHandle| {
        kept = Some(handle);
        done().await
    };
    assert_eq!(server.call_handled("k", handler).await, own("one"));
    let (handle, renewals) = (kept.unwrap(), server.engine.store().renewals());
    assert!(matches!(
        handle.ensure_current().await,
        Err(NotCurrent::Fenced)
    ));
    assert_eq!(server.engine.store().renewals(), renewals);
}
