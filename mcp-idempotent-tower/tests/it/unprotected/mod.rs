//! Calls that nothing protects: those without a key where the tool asks for none, and those that run
//! while the store is away. Through both doors and in both modes.

mod store;
mod till;

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use mcp_idempotent_tower::ServerExt as _;
use serde_json::json;
use tower::timeout::TimeoutLayer;

use self::{
    store::Flaky,
    till::{ACT, ALL, COMMIT_ERRORS, Does, Till, WRITE, is_success, unkeyed},
};
use crate::client::{call, connect, params, refusal};

#[tokio::test]
async fn a_success_without_a_key_commits_and_is_not_recorded() {
    let till = Till::open().await;
    let client = till.connect().await;
    for (sales, tool) in (1..).zip(ALL) {
        let answer = unkeyed(&client, tool).await;
        assert!(is_success(&answer), "{tool}: {answer}");
        assert_eq!(till.sales().await, sales, "{tool}");
        assert_eq!(till.records().await, 0, "{tool}");
    }
    let scope = Some("counter 7".to_owned());
    assert_eq!(*till.scopes.lock().unwrap(), vec![scope; ALL.len()]);
}

#[tokio::test]
async fn an_error_or_a_panic_without_a_key_rolls_back() {
    let till = Till::open().await;
    let client = till.connect().await;
    for tool in ALL {
        till.set(Does::FailsInItsResult);
        let answer = unkeyed(&client, tool).await;
        assert!(!is_success(&answer), "{tool}: {answer}");
        // It is the handler's own answer.
        assert!(answer.to_string().contains("declined"), "{tool}: {answer}");
        till.set(Does::Panics);
        let answer = unkeyed(&client, tool).await;
        let outcome = match WRITE.contains(&tool) {
            true => "not_committed",
            false => "unknown",
        };
        let panicked = ("idempotency_handler_panicked", outcome);
        assert_eq!(refusal(&answer), panicked, "{tool}: {answer}");
        assert_eq!(till.sales().await, 0, "{tool}");
    }
}

#[tokio::test]
async fn an_error_result_without_a_key_commits_where_the_author_says_so_and_a_panic_never() {
    let till = Till::open().await;
    let client = till.connect().await;
    for (sales, tool) in (1..).zip(COMMIT_ERRORS) {
        till.set(Does::FailsInItsResult);
        let answer = unkeyed(&client, tool).await;
        assert_eq!(answer["result"]["isError"], true, "{tool}: {answer}");
        assert_eq!(till.sales().await, sales, "{tool}");
        till.set(Does::Panics);
        refusal(&unkeyed(&client, tool).await);
        assert_eq!(till.sales().await, sales, "{tool}");
    }
    assert_eq!(till.records().await, 0);
}

#[tokio::test]
async fn a_transaction_without_a_key_that_is_still_held_is_refused_and_not_committed() {
    let till = Till::open().await;
    let client = till.connect().await;
    till.set(Does::Holds);
    // A `&mut` transaction cannot be held beyond the call.
    for tool in [WRITE[1], ACT[0], ACT[1]] {
        let answer = unkeyed(&client, tool).await;
        let unknown = ("idempotency_outcome_unknown", "unknown");
        assert_eq!(refusal(&answer), unknown, "{tool}: {answer}");
        till.begun.add_permits(1);
        assert_eq!(till.sales().await, 0, "{tool}");
    }
    // The writer is free again.
    till.set(Does::Succeeds);
    assert!(is_success(&unkeyed(&client, ALL[0]).await));
    assert_eq!(till.sales().await, 1);
}

#[tokio::test]
async fn a_transaction_without_a_key_that_cannot_commit_never_gives_success() {
    let till = Till::open().await;
    let client = till.connect().await;
    till.set(Does::Aborts);
    for (tools, refused) in [
        (WRITE, ("idempotency_not_committed", "not_committed")),
        // The handler may have acted outside before.
        (ACT, ("idempotency_outcome_unknown", "unknown")),
    ] {
        for tool in tools {
            let answer = unkeyed(&client, tool).await;
            assert_eq!(refusal(&answer), refused, "{tool}: {answer}");
            assert_eq!(till.sales().await, 0, "{tool}");
        }
    }
}

#[tokio::test]
async fn a_handler_that_ends_its_transaction_without_a_key_leaves_the_outcome_unknown() {
    let till = Till::open().await;
    let client = till.connect().await;
    till.set(Does::Commits);
    for tool in ALL {
        let answer = unkeyed(&client, tool).await;
        let unknown = ("idempotency_outcome_unknown", "unknown");
        assert_eq!(refusal(&answer), unknown, "{tool}: {answer}");
    }
}

#[tokio::test]
async fn an_attempt_without_a_lease_is_never_lost_and_asks_the_store_for_nothing() {
    let till = Till::open().await;
    let client = till.connect().await;
    for tool in ACT {
        assert!(is_success(&unkeyed(&client, tool).await), "{tool}");
        let attempt = till.attempt.lock().unwrap().take().unwrap();
        assert!(!attempt.is_lost());
        attempt.ensure_current().await.unwrap();
        assert_eq!((attempt.token(), attempt.number()), (None, 1));
        assert_eq!(till.store.renewals.load(SeqCst), 0, "{tool}");
    }
}

#[tokio::test]
async fn an_attempt_that_outlives_its_dropped_call_without_a_key_begins_nothing() {
    for tool in ACT {
        let till = Till::open().await;
        till.set(Does::Waits);
        let hasty = till
            .behind_the_layer()
            .layered(TimeoutLayer::new(Duration::from_millis(50)));
        let client = connect(hasty).await;
        let answer = unkeyed(&client, tool).await;
        assert_eq!(refusal(&answer).0, "call_timed_out", "{tool}: {answer}");
        let attempt = till.attempt.lock().unwrap().take().unwrap();
        let error = attempt.begin::<Flaky>().await.unwrap_err();
        assert!(error.message.contains("has ended"), "{tool}: {error}");
        assert_eq!(till.scopes.lock().unwrap().len(), 0, "{tool}");
    }
}

#[tokio::test]
async fn a_call_that_runs_while_the_store_is_away_keeps_its_scope_and_is_not_recorded() {
    let till = Till::open().await;
    let client = till.connect().await;
    till.store.is_away.store(true, SeqCst);
    for (sales, tool) in (1..).zip(ACT) {
        let meta = json!({ "idempotency-key": tool });
        let answer = call(&client, params(tool, json!({}), meta)).await;
        assert!(is_success(&answer), "{tool}: {answer}");
        assert_eq!(till.sales().await, sales, "{tool}");
        let attempt = till.attempt.lock().unwrap().take().unwrap();
        assert_eq!(attempt.token(), None);
        let scopes = std::mem::take(&mut *till.scopes.lock().unwrap());
        assert_eq!(scopes, [Some("counter 7".to_owned())], "{tool}");
    }
    assert_eq!(till.records().await, 0);
    // In transaction mode nothing runs without its store.
    for tool in WRITE {
        let meta = json!({ "idempotency-key": tool });
        let answer = call(&client, params(tool, json!({}), meta)).await;
        let away = ("idempotency_store_unavailable", "not_committed");
        assert_eq!(refusal(&answer), away, "{tool}: {answer}");
    }
}

#[cfg(feature = "metrics")]
mod counted {
    use mcp_idempotent_tower::telemetry;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    /// The tools and outcomes that were counted, with their numbers.
    fn calls(recorder: &DebuggingRecorder) -> Vec<(String, String, u64)> {
        let seen = recorder.snapshotter().snapshot().into_vec();
        let calls = seen
            .into_iter()
            .filter(|(key, ..)| key.key().name() == telemetry::CALLS);
        let mut calls: Vec<_> = calls
            .map(|(key, _, _, value)| {
                let label = |name| {
                    let mut labels = key.key().labels();
                    let found = labels.find(|label| label.key() == name);
                    found.unwrap().value().to_owned()
                };
                let DebugValue::Counter(count) = value else {
                    panic!("not a counter: {value:?}")
                };
                let outcome = label(telemetry::LABEL_OUTCOME);
                (label(telemetry::LABEL_TOOL), outcome, count)
            })
            .collect();
        calls.sort();
        calls
    }

    fn each(mut tools: Vec<&str>, outcome: &str, count: u64) -> Vec<(String, String, u64)> {
        tools.sort_unstable();
        let tools = tools.into_iter();
        tools
            .map(|tool| (tool.to_owned(), outcome.to_owned(), count))
            .collect()
    }

    #[tokio::test]
    async fn a_call_without_a_key_is_counted_once_as_bypassed_however_it_ends() {
        let recorder = DebuggingRecorder::new();
        let _local = metrics::set_default_local_recorder(&recorder);
        let till = Till::open().await;
        let client = till.connect().await;
        for does in [Does::Succeeds, Does::FailsInItsResult, Does::Panics] {
            till.set(does);
            for tool in ALL {
                unkeyed(&client, tool).await;
            }
        }
        assert_eq!(calls(&recorder), each(ALL.to_vec(), "bypassed", 3));
    }

    #[tokio::test]
    async fn a_call_that_runs_while_the_store_is_away_is_counted_as_that_alone() {
        let recorder = DebuggingRecorder::new();
        let _local = metrics::set_default_local_recorder(&recorder);
        let till = Till::open().await;
        let client = till.connect().await;
        till.store.is_away.store(true, SeqCst);
        for does in [Does::Succeeds, Does::Panics, Does::Aborts] {
            till.set(does);
            for tool in ACT {
                let meta = json!({ "idempotency-key": tool });
                call(&client, params(tool, json!({}), meta)).await;
            }
        }
        assert_eq!(calls(&recorder), each(ACT.to_vec(), "failed_open", 3));
    }
}
