//! Which calls are the same.

use mcp_idempotent_tower::{
    Idempotency, KeyRequirement, MemoryStore,
    relay::{Derive, Relay, RelaySettings, ToolRule},
};
use serde_json::{Value, json};

use super::ends::{Ends, call, idempotency, keyed, refusal_of, relay, text, text_of};

/// Sends calls, and says whether each of them ran.
async fn ran(ends: &mut Ends, calls: &[Value]) -> Vec<bool> {
    let mut ran = Vec::new();
    for call in calls {
        ends.client.say(call).await;
        let asked = tokio::select! {
            asked = ends.server.hear() => Some(asked),
            _ = ends.client.hear() => None,
        };
        if let Some(asked) = &asked {
            ends.server.answer(asked, text("ran")).await;
            ends.client.hear().await;
        }
        ran.push(asked.is_some());
    }
    ran
}

#[tokio::test]
async fn a_key_in_any_of_its_places_is_the_same_key() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let meta = keyed(json!(1), "charge", json!({ "a": 1 }), "k");
    let mut alias = call(json!(2), "charge", json!({ "a": 1 }));
    alias["params"]["_meta"] = json!({ "io.github.mcp-idempotent/idempotency-key": "k" });
    let mut member = call(json!(3), "charge", json!({ "a": 1 }));
    member["params"]["idempotencyKey"] = json!("k");
    let argument = call(json!(4), "charge", json!({ "a": 1, "request_id": "k" }));
    let other = keyed(json!(5), "charge", json!({ "a": 1 }), "other");
    let calls = [meta, alias, member, argument, other];
    assert_eq!(
        ran(&mut ends, &calls).await,
        [true, false, false, false, true]
    );
}

#[tokio::test]
async fn a_refusal_reaches_whoever_made_the_key() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let mut two = keyed(json!(1), "charge", json!({}), "k");
    two["params"]["idempotencyKey"] = json!("other");
    ends.client.say(&two).await;
    let told = ends.client.hear().await;
    assert_eq!(told["error"]["code"], -32602);
    assert_eq!(refusal_of(&told)["type"], "idempotency_key_invalid");

    ends.client
        .say(&call(json!(2), "charge", json!({ "request_id": "" })))
        .await;
    let told = ends.client.hear().await;
    assert_eq!(told["result"]["isError"], true);
    assert!(text_of(&told).starts_with("The call was not executed"));
    assert_eq!(refusal_of(&told)["type"], "idempotency_key_invalid");
    ends.server.hears_only_ping(&mut ends.client).await;
}

#[tokio::test]
async fn a_key_used_for_another_call_is_a_conflict() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    ends.client
        .say(&keyed(json!(1), "charge", json!({ "a": 1 }), "k"))
        .await;
    let asked = ends.server.hear().await;
    ends.client
        .say(&keyed(json!(2), "charge", json!({ "a": 2 }), "k"))
        .await;
    assert_eq!(
        refusal_of(&ends.client.hear().await)["type"],
        "idempotency_key_conflict"
    );
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(ends.client.hear().await["id"], 1);
}

#[tokio::test]
async fn calls_without_a_key_are_recognised_within_one_run_only_and_keys_in_all() {
    let idempotency = idempotency();
    let run = |id: Option<&str>| {
        let mut settings = RelaySettings::default();
        settings.run_id = id.map(str::to_owned);
        Relay::new(idempotency.clone(), settings).unwrap()
    };
    let calls = [
        call(json!(1), "charge", json!({})),
        keyed(json!(2), "charge", json!({}), "k"),
    ];
    for (id, expected) in [
        (None, [true, true]),
        (None, [true, false]),
        (Some("desk-1"), [true, false]),
        (Some("desk-1"), [false, false]),
        (Some("desk-2"), [true, false]),
    ] {
        let mut ends = Ends::listed(&run(id)).await;
        assert_eq!(ran(&mut ends, &calls).await, expected, "{id:?}");
        ends.end().await;
    }
}

#[tokio::test]
async fn only_tools_that_say_that_they_change_something_are_derived_for_where_that_is_asked_for() {
    let mut settings = RelaySettings::default();
    settings.derive = Derive::Annotated;
    let relay = relay(settings);
    let mut ends = Ends::listed(&relay).await;
    let charge = call(json!(1), "charge", json!({}));
    let key = keyed(json!(1), "charge", json!({}), "k");
    assert_eq!(
        ran(&mut ends, &[charge.clone(), charge, key.clone(), key]).await,
        [true, true, true, false]
    );
}

#[tokio::test]
async fn a_rule_for_a_tool_wins_over_its_annotations() {
    let mut settings = RelaySettings::default();
    let mut passes = ToolRule::default();
    passes.passes = true;
    let mut required = ToolRule::default();
    required.key = Some(KeyRequirement::Required);
    settings.tools = [("charge".to_owned(), passes), ("look".to_owned(), required)].into();
    let relay = relay(settings);
    let mut ends = Ends::of(&relay);
    let charge = keyed(json!(1), "charge", json!({}), "k");
    ends.client.say(&charge).await;
    ends.list().await;
    assert_eq!(ends.server.hear().await, charge);
    ends.client.say(&call(json!(2), "look", json!({}))).await;
    assert_eq!(
        refusal_of(&ends.client.hear().await)["type"],
        "idempotency_key_required"
    );
}

#[tokio::test]
async fn a_call_that_cannot_be_compared_is_refused_and_not_sent() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    for arguments in [deep.as_bytes(), b"1e400", b"\"\xff\""] {
        let line = [
            b"{\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"charge\",\"arguments\":{\"a\":",
            arguments,
            b"}}}\n",
        ]
        .concat();
        ends.client.write(&line).await;
        let told = ends.client.hear().await;
        assert_eq!(
            (&told["id"], &told["error"]["code"]),
            (&json!(1), &json!(-32602))
        );
    }
    ends.server.hears_only_ping(&mut ends.client).await;
}

#[test]
fn settings_that_cannot_hold_are_refused_with_what_to_do() {
    let with_run_id = |id: &str| {
        let mut settings = RelaySettings::default();
        settings.run_id = Some(id.to_owned());
        let idempotency = Idempotency::for_stdio("shop", MemoryStore::new()).unwrap();
        Relay::new(idempotency, settings)
    };
    assert!(with_run_id("desk-1").is_ok());
    let error = with_run_id("a desk").unwrap_err().to_string();
    assert_eq!(
        error,
        "\"a desk\" is not a run id; write one word, such as \"desk-1\""
    );

    let asks_rmcp = Idempotency::builder("shop", MemoryStore::new())
        .with_one_caller()
        .with_authorize(|_, _| Box::pin(async { Ok(()) }))
        .build()
        .unwrap();
    let error = Relay::new(asks_rmcp, RelaySettings::default()).unwrap_err();
    assert!(error.to_string().contains("with_authorize"));
}
