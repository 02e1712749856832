//! Repeated calls.

use mcp_idempotent_tower::{
    Idempotency, MemoryStore,
    relay::{Relay, RelaySettings},
};
use serde_json::{Value, json};

use super::ends::{Ends, call, keyed, refusal_of, relay, text, text_of};

const MARK: &str = "io.github.mcp-idempotent/replayed";

#[tokio::test]
async fn a_repeated_call_gets_the_first_result_under_its_own_id() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    ends.client
        .say(&call(json!(1), "charge", json!({ "cents": 100 })))
        .await;
    let asked = ends.server.hear().await;
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(
        ends.client.hear().await,
        json!({ "jsonrpc": "2.0", "id": 1, "result": text("charged") })
    );

    let again = r#"{"id":"\u0032","method":"tools/call","params":{"arguments":{"cents":1e2},"name":"charge"}}"#;
    ends.client.write(format!("{again}\n").as_bytes()).await;
    let told = String::from_utf8(ends.client.line().await.unwrap()).unwrap();
    assert!(told.contains(r#""id":"\u0032""#), "{told}");
    let mut told: Value = serde_json::from_str(&told).unwrap();
    assert!(told["result"]["_meta"][MARK]["at"].is_string());
    told["result"].as_object_mut().unwrap().remove("_meta");
    assert_eq!(told["result"], text("charged"));
    ends.server.hears_only_ping(&mut ends.client).await;
}

/// Some servers write null for the member that does not apply.
#[tokio::test]
async fn an_error_beside_a_result_of_null_is_an_error() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    for id in [1, 2] {
        ends.client.say(&call(json!(id), "charge", json!({}))).await;
        let asked = ends.server.hear().await;
        let error = json!({ "code": -32603, "message": "no" });
        let answer = json!({ "id": asked["id"], "result": null, "error": error });
        ends.server.say(&answer).await;
        assert_eq!(ends.client.hear().await["error"], error);
    }
}

#[tokio::test]
async fn an_answer_that_is_no_json_leaves_its_call_unknown() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    ends.client.say(&call(json!(1), "charge", json!({}))).await;
    let id = ends.server.hear().await["id"].to_string();
    let answer = format!("{{\"id\":{id},\"result\":{{\"content\":[],\"rate\":NaN}}}}\n");
    ends.server.write(answer.as_bytes()).await;
    let told = ends.client.hear().await;
    assert_eq!(told["id"], 1);
    assert_eq!(refusal_of(&told)["outcome"], "unknown");
    ends.client.say(&call(json!(2), "charge", json!({}))).await;
    assert_eq!(refusal_of(&ends.client.hear().await)["outcome"], "unknown");
}

/// As a server does that has no numbers but doubles.
#[tokio::test]
async fn an_answer_whose_id_is_spelt_as_a_double_is_an_answer() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let spellings = [
        |id: u64| format!("{id}.0"),
        |id: u64| format!("{}.{}e1", id / 10, id % 10),
        |id: u64| format!("\"{id}\""),
    ];
    for (cents, spell) in spellings.into_iter().enumerate() {
        let charge = call(json!(1), "charge", json!({ "cents": cents }));
        ends.client.say(&charge).await;
        let asked = ends.server.hear().await;
        let id = spell(asked["id"].as_u64().unwrap());
        let answer = format!("{{\"id\":{id},\"result\":{}}}\n", text("charged"));
        ends.server.write(answer.as_bytes()).await;
        assert_eq!(text_of(&ends.client.hear().await), "charged");
    }
}

#[tokio::test]
async fn a_repeated_call_joins_the_running_one_and_both_get_its_result() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    for id in 1..=5 {
        ends.client.say(&call(json!(id), "charge", json!({}))).await;
    }
    let asked = ends.server.hear().await;
    ends.server.hears_only_ping(&mut ends.client).await;
    ends.server.answer(&asked, text("charged")).await;
    let mut ids = Vec::new();
    for _ in 1..=5 {
        let told = ends.client.hear().await;
        assert_eq!(text_of(&told), "charged");
        ids.push(told["id"].as_u64().unwrap());
    }
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_client_that_uses_one_id_for_everything_gets_no_answer_swapped() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let mut asked = Vec::new();
    for tool in ["a", "b"] {
        ends.client.say(&call(json!(1), tool, json!({}))).await;
        asked.push(ends.server.hear().await);
    }
    ends.client.say(&ping).await;
    assert_eq!(ends.server.hear().await, ping);
    ends.server.answer(&ping, json!({})).await;
    assert_eq!(ends.client.hear().await["result"], json!({}));
    for asked in asked.iter().rev() {
        let tool = asked["params"]["name"].as_str().unwrap();
        ends.server.answer(asked, text(tool)).await;
        assert_eq!(text_of(&ends.client.hear().await), tool);
    }
    for tool in ["a", "b"] {
        ends.client.say(&call(json!(1), tool, json!({}))).await;
        assert_eq!(text_of(&ends.client.hear().await), tool);
    }
}

#[tokio::test]
async fn ten_thousand_interleaved_requests_get_their_own_answers() {
    const CALLS: usize = 5_000;
    let relay = relay(RelaySettings::default());
    let Ends {
        client, mut server, ..
    } = Ends::listed(&relay).await;
    let serve = tokio::spawn(async move {
        let mut held: Vec<Value> = Vec::new();
        for _ in 0..2 * CALLS {
            held.push(server.hear().await);
            // In another order than they came.
            if held.len() == 50 {
                while let Some(asked) = held.pop() {
                    let said = match &asked["params"]["arguments"]["n"] {
                        Value::Null => asked["params"]["n"].to_string(),
                        n => n.to_string(),
                    };
                    server.answer(&asked, text(&said)).await;
                }
            }
        }
        server
    });
    let (mut reader, mut writer) = client.halves();
    let write = tokio::spawn(async move {
        for n in 0..CALLS {
            let other = json!({ "jsonrpc": "2.0", "id": format!("other {n}"), "method": "x", "params": { "n": n } });
            writer
                .say(&call(json!(n), "charge", json!({ "n": n })))
                .await;
            writer.say(&other).await;
        }
        writer
    });
    let mut seen = std::collections::HashSet::new();
    for _ in 0..2 * CALLS {
        let told = reader.hear().await;
        let n = text_of(&told).to_owned();
        let is_own = told["id"] == format!("other {n}") || told["id"].as_u64() == n.parse().ok();
        assert!(is_own, "{told}");
        assert!(seen.insert(told["id"].to_string()));
    }
    drop((write.await.unwrap(), serve.await.unwrap()));
}

#[tokio::test]
async fn a_replay_is_announced_to_a_model_where_that_is_asked_for() {
    let idempotency = Idempotency::builder("shop", MemoryStore::new())
        .with_one_caller()
        .with_announced_replays(true)
        .build()
        .unwrap();
    let relay = Relay::new(idempotency, RelaySettings::default()).unwrap();
    let mut ends = Ends::listed(&relay).await;
    let charge = keyed(json!(1), "charge", json!({}), "k");
    ends.client.say(&charge).await;
    let asked = ends.server.hear().await;
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(ends.client.hear().await["result"], text("charged"));
    ends.client.say(&charge).await;
    let told = ends.client.hear().await;
    let notice = told["result"]["content"][1]["text"].as_str().unwrap();
    assert!(
        notice.starts_with("This call was already executed at "),
        "{notice}"
    );
}

#[tokio::test]
async fn a_further_round_runs_and_the_final_result_answers_every_round() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let first = keyed(json!(1), "charge", json!({}), "k");
    let mut second = first.clone();
    second["params"]["requestState"] = json!("s");
    second["params"]["inputResponses"] = json!({ "ok": { "action": "accept" } });
    ends.client.say(&first).await;
    let asked = ends.server.hear().await;
    let required =
        json!({ "resultType": "input_required", "requestState": "s", "inputRequests": {} });
    ends.server.answer(&asked, required.clone()).await;
    assert_eq!(ends.client.hear().await["result"], required);
    ends.client.say(&second).await;
    let asked = ends.server.hear().await;
    assert_eq!(asked["params"]["requestState"], "s");
    ends.server.answer(&asked, text("charged")).await;
    assert_eq!(ends.client.hear().await["result"], text("charged"));
    ends.client.say(&first).await;
    assert_eq!(text_of(&ends.client.hear().await), "charged");
}
