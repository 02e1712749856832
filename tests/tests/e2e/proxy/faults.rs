//! Cancellations, and deaths of servers, with real processes.

use serde_json::json;

use super::program::{Place, charge, outcome_of, signal, text_of};

#[tokio::test]
async fn a_client_that_times_out_cancels_and_retries_gets_the_one_result_of_a_server_that_drops_it()
{
    let place = Place::new();
    let mut proxy = place.start(&[]);
    let held = json!({ "cents": 5, "hold": place.path("go") });
    proxy.say(&charge(1, held.clone())).await;
    place.until_charged(1).await;
    proxy
        .say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } }))
        .await;
    proxy.say(&charge(2, held.clone())).await;
    place.release("go");
    let told = proxy.hear().await;
    assert_eq!((&told["id"], text_of(&told)), (&json!(2), "charged 5"));
    assert_eq!(text_of(&proxy.call(&charge(3, held)).await), "charged 5");
    assert_eq!(place.charges().len(), 1);
}

#[tokio::test]
async fn after_a_server_was_killed_during_a_call_the_retry_does_as_the_option_says() {
    for (option, runs) in [("error", 1), ("retry", 2)] {
        let place = Place::new();
        let store = format!("sqlite://{}", place.path("calls.db"));
        let options = [
            "--store",
            &store,
            "--run-id",
            "desk-1",
            "--on-unknown",
            option,
        ];
        let mut proxy = place.start(&options);
        let held = json!({ "cents": 5, "hold": place.path("go") });
        proxy.say(&charge(1, held.clone())).await;
        place.until_charged(1).await;
        signal("KILL", &proxy.server_pid().await).await;
        assert_eq!(outcome_of(&proxy.hear().await), "unknown");
        assert_eq!(proxy.next().await, None);
        assert_eq!(proxy.end().await.code(), Some(128 + 9));

        place.release("go");
        let told = place.start(&options).call(&charge(1, held)).await;
        let expected = if runs == 1 { "unknown" } else { "" };
        assert_eq!(outcome_of(&told), expected, "{option}: {told}");
        assert_eq!(place.charges().len(), runs, "{option}");
    }
}

#[tokio::test]
async fn a_server_that_ends_itself_during_a_call_leaves_it_unknown() {
    let place = Place::new();
    let mut proxy = place.start(&[]);
    let told = proxy
        .call(&charge(1, json!({ "cents": 5, "die": true })))
        .await;
    assert_eq!(outcome_of(&told), "unknown");
    assert_eq!(proxy.end().await.code(), Some(9));
}
