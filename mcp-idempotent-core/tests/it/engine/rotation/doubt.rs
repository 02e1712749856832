//! Calls in doubt, found by processes with the other secret.

use std::{sync::Mutex, time::Duration};

use mcp_idempotent_core::{OnDoubt, ResultKind};

use super::super::{
    Outcome, Reply, Server, in_doubt, in_doubt_until_retried,
    leases::store::Faulty,
    own, replayed,
    secret::{A, B, process},
    succeed,
};

const IN_DOUBT: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");

pub(super) fn sides() -> [(Server<Faulty>, Server<Faulty>); 2] {
    [(None, A), (Some(A), B)].map(|(previous, new)| {
        let store = Faulty::default();
        (
            process(&store, previous, None),
            process(&store, Some(new), Some(previous)),
        )
    })
}

pub(super) async fn fail(server: &Server<Faulty>, key: &str) -> Outcome {
    let handler = async { Reply::new(ResultKind::ProtocolError, "did it act?") };
    server.call(key, handler).await
}

#[tokio::test]
async fn what_one_version_left_in_doubt_is_not_run_by_the_other() {
    for (old, new) in sides() {
        for (first, second, key) in [(&old, &new, "a"), (&new, &old, "b")] {
            assert_eq!(fail(first, key).await, in_doubt("did it act?"));
            assert_eq!(second.call(key, succeed("two")).await, IN_DOUBT);
            assert_eq!(first.call(key, succeed("two")).await, IN_DOUBT);
        }
    }
}

#[tokio::test]
async fn a_rerun_by_the_other_version_passes_the_same_key_on() {
    for (old, new) in sides() {
        let rerun =
            |server: &Server<Faulty>| server.under(|policy| policy.on_doubt = OnDoubt::Rerun);
        let (old, new) = (rerun(&old), rerun(&new));
        for (first, second, key) in [(&old, &new, "a"), (&new, &old, "b")] {
            let keys = Mutex::new(Vec::new());
            for (server, kind) in [
                (first, ResultKind::ProtocolError),
                (second, ResultKind::ProtocolError),
                (first, ResultKind::Success),
            ] {
                let request = server.request(server.identity(Some(key), "{}"));
                let handler = async |handle: mcp_idempotent_core::LeaseHandle| {
                    keys.lock().unwrap().push(handle.downstream_key("pay"));
                    Reply::new(kind, "one")
                };
                let expected = match kind {
                    ResultKind::Success => own("one"),
                    _ => in_doubt_until_retried("one"),
                };
                assert_eq!(server.call_with(request, handler).await, expected);
            }
            let keys = keys.into_inner().unwrap();
            assert_eq!(keys.len(), 3);
            assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
            assert_eq!(second.call(key, succeed("two")).await, replayed("one"));
        }
    }
}

#[tokio::test]
async fn what_did_not_execute_leaves_the_key_free_for_both_versions() {
    for (old, new) in sides() {
        for kind in [ResultKind::NotExecuted, ResultKind::InputRequired] {
            for (first, second) in [(&old, &new), (&new, &old)] {
                let key = format!("{kind:?}-{}", first.executions() + second.executions());
                let nothing = async { Reply::new(kind, "nothing") };
                assert_eq!(first.call(&key, nothing).await, own("nothing"));
                assert_eq!(second.call(&key, succeed("one")).await, own("one"));
                assert_eq!(first.call(&key, succeed("two")).await, replayed("one"));
            }
        }
    }
}

#[tokio::test]
async fn a_result_that_was_too_large_is_a_tombstone_for_both_versions() {
    for (old, new) in sides() {
        let small = |server: &Server<Faulty>| server.under(|policy| policy.max_result_bytes = 1);
        let (old, new) = (small(&old), small(&new));
        for (first, second, key) in [(&old, &new, "a"), (&new, &old, "b")] {
            assert_eq!(first.call(key, succeed("large")).await, own("large"));
            let refused = second.call(key, succeed("two")).await;
            assert!(
                matches!(
                    refused,
                    Outcome::Refused("idempotency_result_too_large", ..)
                ),
                "{refused:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_as_long_as_its_call_runs() {
    for (old, new) in sides() {
        let slow = tokio::spawn({
            let new = new.clone();
            async move {
                let handler = async {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    Reply::new(ResultKind::Success, "one")
                };
                new.call("k", handler).await
            }
        });
        super::super::until(|| new.executions() == 1).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(300)).await;
            let impatient = old.under(|policy| policy.wait = mcp_idempotent_core::Wait::Reject);
            let answer = impatient.call("k", succeed("two")).await;
            assert!(
                matches!(answer, Outcome::Refused("idempotency_key_in_progress", ..)),
                "{answer:?}"
            );
        }
        assert_eq!(slow.await.unwrap(), own("one"));
        assert_eq!(old.call("k", succeed("two")).await, replayed("one"));
    }
}
