//! Calls whose client no longer waits.

use mcp_idempotent_tower::relay::RelaySettings;
use serde_json::json;

use super::ends::{Ends, call, cancelled, keyed, refusal_of, relay, text, text_of};

#[tokio::test]
async fn a_cancelled_call_goes_on_and_its_retry_gets_the_result() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let charge = |id| call(json!(id), "charge", json!({}));
    ends.client.say(&charge(1)).await;
    let asked = ends.server.hear().await;
    ends.client.say(&cancelled(&json!(1))).await;
    ends.server.hears_only_ping(&mut ends.client).await;
    // A retry while it runs joins; one after it has ended gets the record.
    ends.client.say(&charge(2)).await;
    ends.server.hears_only_ping(&mut ends.client).await;
    ends.server.answer(&asked, text("charged")).await;
    let told = ends.client.hear().await;
    assert_eq!((&told["id"], text_of(&told)), (&json!(2), "charged"));
    ends.client.say(&charge(3)).await;
    let told = ends.client.hear().await;
    assert_eq!((&told["id"], text_of(&told)), (&json!(3), "charged"));
    ends.server.hears_only_ping(&mut ends.client).await;
}

#[tokio::test]
async fn a_joined_call_that_is_cancelled_leaves_the_running_one_alone() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    for id in [1, 2] {
        ends.client.say(&call(json!(id), "charge", json!({}))).await;
    }
    let asked = ends.server.hear().await;
    ends.client.say(&cancelled(&json!(2))).await;
    ends.server.hears_only_ping(&mut ends.client).await;
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(ends.client.hear().await["id"], 1);
    ends.client.hears_only_ping(&mut ends.server).await;
}

#[tokio::test]
async fn a_forwarded_cancel_leaves_the_call_unknown_whatever_the_server_then_answers() {
    let mut settings = RelaySettings::default();
    settings.forward_cancel = true;
    let relay = relay(settings);
    let mut ends = Ends::listed(&relay).await;
    for (n, key) in ["a", "b"].into_iter().enumerate() {
        ends.client
            .say(&keyed(json!(n), "charge", json!({}), key))
            .await;
        let asked = ends.server.hear().await;
        ends.client.say(&cancelled(&json!(n))).await;
        let told = ends.server.hear().await;
        assert_eq!(told["method"], "notifications/cancelled");
        assert_eq!(
            told["params"],
            json!({ "requestId": asked["id"], "reason": "too slow" })
        );
        if n == 0 {
            ends.server.fail(&asked, "cancelled").await;
        } else {
            ends.server.answer(&asked, text("charged")).await;
        }
        ends.client.hears_only_ping(&mut ends.server).await;
        ends.client
            .say(&keyed(json!("again"), "charge", json!({}), key))
            .await;
        let told = ends.client.hear().await;
        assert_eq!(
            refusal_of(&told)["type"],
            "idempotency_outcome_unknown",
            "{told}"
        );
        ends.server.hears_only_ping(&mut ends.client).await;
    }
}

#[tokio::test]
async fn the_cancellation_of_what_is_not_protected_passes() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&call(json!(1), "look", json!({}))).await;
    assert_eq!(ends.server.hear().await["id"], 1);
    ends.client.say(&cancelled(&json!(1))).await;
    assert_eq!(ends.server.hear().await, cancelled(&json!(1)));
}
