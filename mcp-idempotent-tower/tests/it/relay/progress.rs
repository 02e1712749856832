//! Progress of a running call.

use mcp_idempotent_tower::relay::RelaySettings;
use serde_json::{Value, json};

use super::ends::{Ends, call, cancelled, relay, text};

fn charge(id: u64, token: Value) -> Value {
    let mut charge = call(json!(id), "charge", json!({}));
    if !token.is_null() {
        charge["params"]["_meta"] = json!({ "progressToken": token });
    }
    charge
}

fn progress(token: &Value, progress: u64) -> Value {
    json!({
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": { "progressToken": token, "progress": progress },
    })
}

#[tokio::test]
async fn progress_reaches_all_callers_who_asked_for_it_and_nobody_else() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&charge(1, json!("one"))).await;
    let asked = ends.server.hear().await;
    let token = asked["params"]["_meta"]["progressToken"].clone();
    ends.client.say(&charge(2, json!(2.5))).await;
    ends.client.say(&charge(3, Value::Null)).await;
    ends.server.hears_only_ping(&mut ends.client).await;

    ends.server.say(&progress(&token, 1)).await;
    assert_eq!(ends.client.hear().await, progress(&json!("one"), 1));
    assert_eq!(ends.client.hear().await, progress(&json!(2.5), 1));
    ends.client.say(&cancelled(&json!(1))).await;
    ends.server.hears_only_ping(&mut ends.client).await;
    ends.server.say(&progress(&token, 2)).await;
    assert_eq!(ends.client.hear().await, progress(&json!(2.5), 2));
    ends.client.hears_only_ping(&mut ends.server).await;

    ends.server.answer(&asked, text("charged")).await;
    let mut ids = [
        ends.client.hear().await["id"].as_u64(),
        ends.client.hear().await["id"].as_u64(),
    ];
    ids.sort_unstable();
    assert_eq!(ids, [Some(2), Some(3)]);
}
