//! Rules that cannot hold together.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{Action, Answer};
use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, ErrorKind, IdempotencyKey, MemoryStore, Policy,
    Request, Scope,
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn refused(change: impl FnOnce(&mut Policy)) -> Option<String> {
    let mut policy = Policy::default();
    change(&mut policy);
    policy.check().err().map(|refused| refused.to_string())
}

#[test]
fn the_default_rules_hold_and_a_heartbeat_is_a_third_of_the_lease() {
    assert_eq!(refused(|_| {}), None);
    let policy = Policy::default();
    assert_eq!(policy.heartbeat_period(), policy.lease / 3);
}

#[test]
fn a_heartbeat_is_more_than_nothing_and_at_most_half_of_the_lease() {
    let with = |lease, heartbeat| {
        refused(|policy| {
            policy.lease = lease;
            policy.heartbeat = heartbeat;
        })
    };
    assert_eq!(with(seconds(10), Some(seconds(5))), None);
    assert_eq!(with(seconds(10), Some(Duration::from_nanos(1))), None);
    assert_eq!(
        with(seconds(10), Some(seconds(6))).unwrap(),
        "the heartbeat is 6s; it must be more than zero and at most half of the lease, 10s"
    );
    assert!(with(seconds(10), Some(seconds(11))).is_some());
    assert!(with(seconds(10), Some(Duration::ZERO)).is_some());
    assert!(with(Duration::ZERO, None).is_some());
}

#[test]
fn records_in_doubt_outlive_completed_ones() {
    let with = |retention, window, in_doubt| {
        refused(|policy| {
            policy.retention = retention;
            policy.window = window;
            policy.in_doubt_retention = in_doubt;
        })
    };
    assert_eq!(with(seconds(5), seconds(5), seconds(5)), None);
    assert!(
        with(seconds(6), seconds(5), seconds(5))
            .unwrap()
            .contains("retention")
    );
    assert!(
        with(seconds(5), seconds(6), seconds(5))
            .unwrap()
            .contains("window")
    );
}

#[test]
fn nothing_lasts_longer_than_stores_can_reckon() {
    for (name, change) in [
        (
            "lease",
            (|policy| policy.lease = Duration::MAX) as fn(&mut Policy),
        ),
        ("retention", |policy| policy.retention = Duration::MAX),
        ("window", |policy| policy.window = Duration::MAX),
        ("tombstone", |policy| policy.tombstone = Duration::MAX),
        ("in_doubt_retention", |policy| {
            policy.in_doubt_retention = Duration::MAX;
        }),
    ] {
        let refused = refused(change).unwrap();
        assert!(refused.starts_with(&format!("the {name} is")), "{refused}");
    }
}

#[tokio::test]
async fn a_call_under_rules_that_cannot_hold_is_refused_and_does_not_run() {
    let engine = Engine::new("tests", MemoryStore::new());
    for change in [
        (|policy| policy.heartbeat = Some(Duration::MAX)) as fn(&mut Policy),
        |policy| policy.lease = Duration::MAX,
        |policy| policy.in_doubt_retention = seconds(1),
    ] {
        let mut policy = Policy::default();
        change(&mut policy);
        let policy = Arc::new(policy);
        let scope = Scope::new("alice");
        let key = IdempotencyKey::new("k").unwrap();
        let identity = engine.identify(
            &scope,
            Some(&key),
            "tool",
            &CanonicalArguments::new(None, &[]),
        );
        let request = Request::new(CallInfo::new("tool", scope), identity, &policy);
        let Begun::Answer(Answer::Refused(refusal)) = engine.begin(request).await else {
            panic!("it must not run");
        };
        assert_eq!(refusal.kind(), ErrorKind::Misconfigured);
        assert_eq!(refusal.action(), Action::AskOperator);
        assert!(engine.store().is_empty());
    }
}
