//! Rules that cannot hold together.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{Action, Answer};
use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, ErrorKind, IdempotencyKey, KeyRequirement,
    MemoryStore, OnDoubt, OnError, OnErrorResult, OnExpired, Policy, PolicyOverride, PolicyUse,
    Request, RotatedKeys, Scope, Wait,
};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn refused(change: impl FnOnce(&mut Policy)) -> Option<String> {
    let mut policy = Policy::default();
    change(&mut policy);
    let refused = policy.check(PolicyUse::Server, None).err();
    refused.map(|refused| refused.to_string())
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
        let Begun::Answer(Answer::Refused(refusal)) = engine.begin_lease(request).await else {
            panic!("it must not run");
        };
        assert_eq!(refusal.kind(), ErrorKind::Misconfigured);
        assert_eq!(refusal.action(), Action::AskOperator);
        assert!(engine.store().is_empty());
    }
}

#[test]
fn every_duration_is_more_than_nothing_and_at_most_a_hundred_years() {
    for (name, set) in [
        (
            "lease",
            (|policy, lasts| policy.lease = lasts) as fn(&mut Policy, Duration),
        ),
        ("retention", |policy, lasts| policy.retention = lasts),
        ("window", |policy, lasts| policy.window = lasts),
        ("tombstone", |policy, lasts| {
            policy.tombstone = lasts;
            policy.on_error_result = Some(OnErrorResult::Record);
            policy.on_expired = OnExpired::Refuse;
        }),
        ("verify_timeout", |policy, lasts| {
            policy.verify_timeout = lasts;
        }),
        ("in_doubt_retention", |policy, lasts| {
            policy.in_doubt_retention = lasts;
        }),
        ("wait", |policy, lasts| policy.wait = Wait::UpTo(lasts)),
        ("transaction_timeout", |policy, lasts| {
            policy.transaction_timeout = Some(lasts);
        }),
    ] {
        for lasts in [Duration::ZERO, Policy::LONGEST + Duration::from_nanos(1)] {
            let message = refused(|policy| set(policy, lasts)).unwrap();
            assert_eq!(
                message,
                format!(
                    "the {name} is {lasts:?}; it must be more than zero and at most a hundred years"
                )
            );
        }
        let longest = refused(|policy| {
            policy.in_doubt_retention = Policy::LONGEST;
            set(policy, Policy::LONGEST);
        });
        assert_eq!(longest, None, "{name}");
    }
}

#[test]
fn arguments_are_named_by_json_pointers() {
    for pointer in ["", "trace", "/a~2b"] {
        let expected = "is not a JSON pointer to an argument";
        let ignored = refused(|policy| policy.ignored = Arc::new([pointer.into()]));
        assert!(ignored.unwrap().contains(expected), "{pointer:?}");
        let key = refused(|policy| policy.key_argument = Some(pointer.into()));
        assert!(key.unwrap().contains(expected), "{pointer:?}");
    }
}

#[test]
fn what_an_error_and_a_doubt_mean_is_checked_against_the_mode() {
    let check = |of, on_error, on_doubt| {
        let mut policy = Policy::default();
        policy.on_error = on_error;
        policy.on_doubt = on_doubt;
        policy.check(of, None).is_ok()
    };
    let (mute, asking) = (
        PolicyUse::Lease { can_verify: false },
        PolicyUse::Lease { can_verify: true },
    );
    for (of, on_error, on_doubt, holds) in [
        (PolicyUse::Server, OnError::InDoubt, OnDoubt::Rerun, true),
        (PolicyUse::Server, OnError::Default, OnDoubt::Verify, false),
        (PolicyUse::Transaction, OnError::Commit, OnDoubt::Fail, true),
        (
            PolicyUse::Transaction,
            OnError::InDoubt,
            OnDoubt::Fail,
            false,
        ),
        (mute, OnError::InDoubt, OnDoubt::Rerun, true),
        (mute, OnError::Release, OnDoubt::Verify, false),
        (mute, OnError::Default, OnDoubt::Fail, false),
        (mute, OnError::Record, OnDoubt::Fail, false),
        (asking, OnError::Release, OnDoubt::Verify, true),
    ] {
        assert_eq!(
            check(of, on_error, on_doubt),
            holds,
            "{of:?} {on_error:?} {on_doubt:?}"
        );
    }
}

#[test]
fn a_lease_is_more_than_three_times_the_limit_on_transactions() {
    let mut policy = Policy::default();
    policy.lease = seconds(90);
    policy.on_error = OnError::InDoubt;
    for of in [PolicyUse::Server, PolicyUse::Lease { can_verify: false }] {
        assert_eq!(policy.check(of, Some(seconds(29))), Ok(()));
        assert_eq!(
            policy.check(of, Some(seconds(30))).unwrap_err().to_string(),
            "the lease is 90s; with this store it must be more than three times the limit on transactions, 30s"
        );
    }
    policy.on_error = OnError::Commit;
    assert_eq!(
        policy.check(PolicyUse::Transaction, Some(seconds(30))),
        Ok(())
    );
}

/// Both with every field, so that a new one cannot be left out of either.
fn one_that_says_everything() -> (PolicyOverride, Policy) {
    let mut policy = Policy::default();
    policy.key = KeyRequirement::Required;
    policy.key_argument = Some("/key".into());
    policy.ignored = Arc::new(["/trace".into(), "/at".into()]);
    policy.also_known_as = Some("before".into());
    policy.retention = seconds(1);
    policy.window = seconds(2);
    policy.wait = Wait::Reject;
    policy.rotated_keys = RotatedKeys::Refuse;
    policy.rotated_keys_window = seconds(10);
    policy.on_error = OnError::Release;
    policy.on_error_result = Some(OnErrorResult::Record);
    policy.on_expired = OnExpired::Refuse;
    policy.tombstone = seconds(3);
    policy.lease = seconds(4);
    policy.heartbeat = Some(seconds(5));
    policy.on_doubt = OnDoubt::Rerun;
    policy.verify_timeout = seconds(6);
    policy.in_doubt_retention = seconds(7);
    policy.transaction_timeout = Some(seconds(9));
    policy.max_result_bytes = 8;
    policy.run_unprotected_when_store_is_unavailable = true;
    let said = PolicyOverride {
        key: Some(KeyRequirement::Required),
        key_argument: Some("/key".into()),
        ignored: Some(vec!["/trace".into(), "/at".into()].into()),
        also_known_as: Some("before".into()),
        retention: Some(seconds(1)),
        window: Some(seconds(2)),
        wait: Some(Wait::Reject),
        rotated_keys: Some(RotatedKeys::Refuse),
        rotated_keys_window: Some(seconds(10)),
        on_error: Some(OnError::Release),
        on_error_result: Some(OnErrorResult::Record),
        on_expired: Some(OnExpired::Refuse),
        tombstone: Some(seconds(3)),
        lease: Some(seconds(4)),
        heartbeat: Some(seconds(5)),
        on_doubt: Some(OnDoubt::Rerun),
        verify_timeout: Some(seconds(6)),
        in_doubt_retention: Some(seconds(7)),
        transaction_timeout: Some(seconds(9)),
        max_result_bytes: Some(8),
        run_unprotected_when_store_is_unavailable: Some(true),
    };
    (said, policy)
}

/// The names of the fields of a structure, from its `Debug`.
fn fields(of: &impl std::fmt::Debug) -> Vec<String> {
    let pretty = format!("{of:#?}");
    let names = pretty.lines().filter_map(|line| {
        let field = line.strip_prefix("    ")?;
        let (name, _) = field.split_once(": ")?;
        (!name.starts_with(' ')).then(|| name.to_owned())
    });
    names.collect()
}

#[test]
fn an_override_has_every_field_of_a_policy_and_each_goes_over_the_servers() {
    let (said, policy) = one_that_says_everything();
    assert_eq!(said.over(&Policy::default()), policy);
    assert_eq!(PolicyOverride::NONE.over(&policy), policy);
    assert_eq!(PolicyOverride::NONE, PolicyOverride::default());
    assert_eq!(fields(&said), fields(&policy));
    assert_eq!(fields(&said).len(), 21);
    // None of the values is the default, or the test would not see that it goes over.
    let default = Policy::default();
    let differing = format!("{policy:#?}");
    for line in format!("{default:#?}").lines() {
        let is_field = line.starts_with("    ") && !line.starts_with("     ");
        let opens = line.ends_with(['(', '[', '{']);
        assert!(
            !is_field
                || opens
                || line.trim().len() < 3
                || !differing.lines().any(|other| other == line),
            "{line}"
        );
    }
}

#[test]
fn a_longer_retention_takes_that_of_records_in_doubt_along_unless_it_is_said() {
    let year = seconds(365 * 24 * 60 * 60);
    let long = PolicyOverride {
        retention: Some(year),
        ..PolicyOverride::NONE
    };
    let transaction = PolicyUse::Transaction;
    let policy = long
        .for_tool(&Policy::default(), transaction, None)
        .unwrap();
    assert_eq!(policy.in_doubt_retention, year);
    let short = PolicyOverride {
        in_doubt_retention: Some(seconds(1)),
        ..long
    };
    let refused = short.for_tool(&Policy::default(), transaction, None);
    assert!(refused.unwrap_err().to_string().contains("in doubt"));
}

#[test]
fn what_a_server_says_for_leases_does_not_count_for_a_transaction_and_a_tool_may_not_say_it() {
    let mut server = Policy::default();
    server.on_error = OnError::InDoubt;
    let transaction = PolicyUse::Transaction;
    let policy = PolicyOverride::NONE.for_tool(&server, transaction, None);
    assert_eq!(policy.unwrap().on_error, OnError::Default);
    for said in [
        PolicyOverride {
            on_error: Some(OnError::InDoubt),
            ..PolicyOverride::NONE
        },
        PolicyOverride {
            lease: Some(Policy::DEFAULT_LEASE),
            ..PolicyOverride::NONE
        },
        PolicyOverride {
            on_doubt: Some(OnDoubt::Rerun),
            ..PolicyOverride::NONE
        },
        PolicyOverride {
            run_unprotected_when_store_is_unavailable: Some(true),
            ..PolicyOverride::NONE
        },
    ] {
        let refused = said.for_tool(&server, transaction, None).unwrap_err();
        assert!(
            refused.to_string().contains("transaction mode"),
            "{refused}"
        );
    }
}
