//! What the server's answers mean for a repeated call.

use mcp_idempotent_tower::relay::{RelaySettings, ServerError};
use serde_json::{Value, json};

use super::ends::{Ends, call, keyed, refusal_of, relay, text};

fn failed() -> Value {
    let mut failed = text("declined");
    failed["isError"] = json!(true);
    failed
}

/// What the client gets for `first` if the server answers so, and what it gets for the same call afterwards.
/// `None` if that one runs.
async fn answers(
    settings: RelaySettings,
    first: Value,
    member: &str,
    said: Value,
) -> (Value, Option<Value>) {
    let relay = relay(settings);
    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&first).await;
    let asked = ends.server.hear().await;
    ends.server
        .say(&json!({ "jsonrpc": "2.0", "id": asked["id"], member: said }))
        .await;
    let told = ends.client.hear().await;
    ends.client.say(&first).await;
    let again = tokio::select! {
        _ = ends.server.hear() => None,
        again = ends.client.hear() => Some(again),
    };
    (told[member].clone(), again)
}

#[tokio::test]
async fn a_failed_result_is_kept_under_a_key_and_forgotten_without_one() {
    let settings = RelaySettings::default;
    let keyed = keyed(json!(1), "charge", json!({}), "k");
    let (told, again) = answers(settings(), keyed, "result", failed()).await;
    assert_eq!(told, failed());
    assert_eq!(again.unwrap()["result"]["content"], failed()["content"]);

    let (told, again) = answers(
        settings(),
        call(json!(1), "charge", json!({})),
        "result",
        failed(),
    )
    .await;
    assert_eq!(told, failed());
    assert!(again.is_none());
}

#[tokio::test]
async fn an_error_of_the_server_frees_the_call_unless_it_is_said_to_prove_nothing() {
    let error = json!({ "code": -32000, "message": "broken", "data": [1.0] });
    let charge = keyed(json!(1), "charge", json!({}), "k");
    let settings = RelaySettings::default();
    let (told, again) = answers(settings, charge.clone(), "error", error.clone()).await;
    assert_eq!(told, error);
    assert!(again.is_none());

    let mut careful = RelaySettings::default();
    careful.server_error = ServerError::MayHaveActed;
    let (told, again) = answers(careful, charge, "error", error.clone()).await;
    assert_eq!(told, error);
    assert_eq!(
        refusal_of(&again.unwrap())["type"],
        "idempotency_outcome_unknown"
    );
}

#[tokio::test]
async fn a_task_is_kept_and_a_retry_gets_the_same_task() {
    let task = json!({ "resultType": "task", "taskId": "t1", "status": "working" });
    let charge = call(json!(1), "charge", json!({}));
    let (told, again) = answers(RelaySettings::default(), charge, "result", task.clone()).await;
    assert_eq!(told, task);
    assert_eq!(again.unwrap()["result"]["taskId"], "t1");
}

#[tokio::test]
async fn a_server_that_recognises_retries_itself_gets_those_that_it_asks_for() {
    let refusal = |action: &str, outcome: &str| {
        let data =
            json!({ "type": "idempotency_outcome_unknown", "outcome": outcome, "action": action });
        json!({ "code": -32603, "message": "?", "data": data })
    };
    let careful = || {
        let mut careful = RelaySettings::default();
        careful.server_error = ServerError::MayHaveActed;
        careful
    };
    let book = keyed(json!(1), "book", json!({}), "k");
    let asks = refusal("retry_same_key", "unknown");
    assert!(
        answers(careful(), book.clone(), "error", asks.clone())
            .await
            .1
            .is_none()
    );
    // This one does not recognise them, so it passes on what another server said, and may have acted.
    let charge = keyed(json!(1), "charge", json!({}), "k");
    let unknown = answers(careful(), charge, "error", asks).await.1;
    assert_eq!(refusal_of(&unknown.unwrap())["outcome"], "unknown");
    let settings = RelaySettings::default();
    let unknown = answers(settings, book, "error", refusal("ask_operator", "unknown"))
        .await
        .1;
    assert_eq!(refusal_of(&unknown.unwrap())["outcome"], "unknown");
}

#[tokio::test]
async fn a_result_too_large_to_keep_is_given_once_and_the_call_does_not_run_again() {
    let large = text(&"x".repeat(2 * 1024 * 1024));
    let charge = call(json!(1), "charge", json!({}));
    let (told, again) = answers(RelaySettings::default(), charge, "result", large.clone()).await;
    assert_eq!(told, large);
    assert_eq!(
        refusal_of(&again.unwrap())["type"],
        "idempotency_result_too_large"
    );
}
