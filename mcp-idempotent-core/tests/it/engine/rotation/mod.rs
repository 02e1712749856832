//! Processes with the previous secret and with the new one, side by side on one store; and equal calls
//! under different keys, which need a guard as well.

mod crash;
mod doubt;
mod guards;
mod keys;
pub(super) mod process;
mod sides;

use std::sync::Arc;

use mcp_idempotent_core::{CallInfo, Scope, Store, store::Inspected};

use self::sides::{Both, Mode, Side};
use super::{leases::store::Faulty, secret};

const KEYS: usize = 6;

/// Each key goes to both sides, several times, one after the other and at once.
async fn one_effect_a_key<S: Store, M: Mode<S>>(both: Both<S, M>) {
    for (key, derived) in (0..KEYS).flat_map(|key| [(key, false), (key, true)]) {
        let call = async |side: &Side<S, M>| side.call(key, derived).await;
        let (first, second) = if key % 2 == 0 {
            (&both.old, &both.new)
        } else {
            (&both.new, &both.old)
        };
        let answer = call(first).await;
        for side in [second, first, second] {
            assert_eq!(call(side).await, answer, "key {key}, derived: {derived}");
        }
    }
    assert_eq!(both.effects().await, 2 * KEYS);

    let both = Arc::new(both);
    let mut racing = tokio::task::JoinSet::new();
    for (key, derived) in (KEYS..2 * KEYS).flat_map(|key| [(key, false), (key, true)]) {
        for turn in 0..4 {
            let both = Arc::clone(&both);
            racing.spawn(async move {
                let side = if turn % 2 == 0 { &both.old } else { &both.new };
                (key, derived, side.call(key, derived).await)
            });
        }
    }
    while let Some(answered) = racing.join_next().await {
        let (key, derived, answer) = answered.unwrap();
        for side in [&both.old, &both.new] {
            assert_eq!(side.call(key, derived).await, answer, "key-{key}");
        }
    }
    assert_eq!(both.effects().await, 4 * KEYS);
}

#[tokio::test]
async fn two_versions_have_one_effect_a_key_in_memory() {
    for (old, new) in sides::CHANGES {
        let store = Faulty::default();
        one_effect_a_key(Both::new(old, new, || store.clone(), sides::Leases).await).await;
    }
}

#[tokio::test]
async fn two_versions_have_one_effect_a_key_in_sqlite() {
    for (old, new) in sides::CHANGES {
        let file = sides::SqliteFile::new().await;
        one_effect_a_key(Both::new(old, new, || file.store(), sides::Leases).await).await;
        let file = sides::SqliteFile::new().await;
        let both = Both::new(old, new, || file.store(), sides::Transactions).await;
        one_effect_a_key(both).await;
    }
}

#[tokio::test]
async fn two_versions_have_one_effect_a_key_in_postgres() {
    for (old, new) in sides::CHANGES {
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        one_effect_a_key(Both::new(old, new, store, sides::Leases).await).await;
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        one_effect_a_key(Both::new(old, new, store, sides::Transactions).await).await;
    }
}

#[tokio::test]
async fn another_call_under_the_key_is_a_conflict_for_both_versions() {
    let store = Faulty::default();
    let old = secret::process(&store, None, None);
    let new = secret::process(&store, Some(secret::A), Some(None));
    let ask = async |server: &super::Server<Faulty>, arguments: &str, key: &str| {
        let request = server.request(server.identity(Some(key), arguments));
        server.call_as(request, super::succeed("one")).await
    };
    for (first, second, key) in [(&old, &new, "a"), (&new, &old, "b")] {
        assert_eq!(ask(first, "{}", key).await, super::own("one"));
        let other = ask(second, r#"{"other":true}"#, key).await;
        assert!(
            matches!(
                other,
                super::Outcome::Refused("idempotency_key_conflict", ..)
            ),
            "{other:?}"
        );
        assert_eq!(ask(second, "{}", key).await, super::replayed("one"));
    }
}

#[tokio::test]
async fn a_status_is_found_under_both_secrets() {
    let store = Faulty::default();
    let old = secret::process(&store, None, None);
    let new = secret::process(&store, Some(secret::A), Some(None));
    for (maker, key) in [(&old, "a"), (&new, "b")] {
        maker.call(key, super::succeed("one")).await;
        for asked in [&old, &new] {
            let identity = asked.identity(Some(key), "{}");
            let call = CallInfo::new("tool", Scope::new("alice"));
            match asked.engine.inspect(call, &identity).await.unwrap() {
                Inspected::Found(record) => assert_eq!(record.fingerprint, identity.fingerprint),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_renamed_application_finds_what_it_did_under_its_old_name() {
    let store = Faulty::default();
    let old = secret::process(&store, None, None);
    let new = super::Server {
        engine: mcp_idempotent_core::Engine::builder("renamed", store.clone())
            .with_previous_application("tests")
            .build(),
        ..old.clone()
    };
    assert_eq!(
        old.call("a", super::succeed("one")).await,
        super::own("one")
    );
    assert_eq!(
        new.call("a", super::succeed("two")).await,
        super::replayed("one")
    );
    assert_eq!(
        new.call("b", super::succeed("one")).await,
        super::own("one")
    );
    assert_eq!(
        old.call("b", super::succeed("two")).await,
        super::replayed("one")
    );
}

#[tokio::test]
async fn a_tool_that_keeps_its_results_for_longer_than_the_replacement_takes_is_refused() {
    let store = Faulty::default();
    let new =
        secret::process(&store, Some(secret::A), Some(None)).under(|policy| policy.retention *= 2);
    let refused = new.call("k", super::succeed("one")).await;
    assert!(
        matches!(
            refused,
            super::Outcome::Refused("idempotency_misconfigured", ..)
        ),
        "{refused:?}"
    );
}
