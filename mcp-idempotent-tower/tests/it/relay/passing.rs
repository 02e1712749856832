//! What passes as it came.

use mcp_idempotent_tower::relay::RelaySettings;
use serde_json::json;
use tokio::time::Instant;

use super::ends::{Ends, call, relay, text};

#[tokio::test]
async fn every_line_that_is_no_protected_call_passes_byte_for_byte_in_both_directions() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let lines: [&[u8]; 14] = [
        b"garbage\n",
        b"\n",
        b"\xff\xfe not UTF-8\n",
        b"{ \"jsonrpc\" : \"2.0\",  \"id\":1.50, \"method\":\"x/y\", \"params\":{\"z\":1e400} }\r\n",
        b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/z\",\"zzz\":[]}\n",
        b"[{\"method\":\"ping\",\"id\":1},{\"method\":\"ping\",\"id\":2}]\n",
        b"[]\n",
        b"{\"id\":\"from the server\",\"result\":{\"a\": 1.0}}\n",
        b"{\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":99}}\n",
        b"{\"method\":\"notifications/progress\",\"params\":{\"progressToken\":99}}\n",
        b"{\"method\":\"tools/call\",\"params\":{\"name\":\"charge\"}}\n",
        b"{\"method\":\"tools/call\",\"id\":null,\"params\":{\"name\":\"charge\"}}\n",
        b"{\"method\":\"tools/call\",\"id\":7,\"params\":{\"name\":\"charge\",\"arguments\":[1]}}\n",
        b"{\"method\":\"tools/call\",\"id\":8,\"params\":{\"name\":\"look\", \"arguments\":{} } }\n",
    ];
    for line in lines {
        ends.client.write(line).await;
        assert_eq!(ends.server.line().await.unwrap(), line);
        ends.server.write(line).await;
        assert_eq!(ends.client.line().await.unwrap(), line);
    }
    let half = b"{\"method\":\"ping\"";
    ends.client.write(half).await;
    ends.client.close().await;
    assert_eq!(ends.server.line().await.unwrap(), half);
    assert_eq!(ends.server.line().await, None);
    ends.server.write(half).await;
    drop(ends.server);
    assert_eq!(ends.client.line().await.unwrap(), half);
    assert_eq!(ends.client.line().await, None);
}

#[tokio::test]
async fn a_call_reaches_the_server_with_another_id_and_token_and_no_other_change() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let params = r#""params" : {"x": 1.0, "_meta":{"progressToken":"t" , "a":1e2},"name":"ch\u0061rge" ,"arguments":{ "a":1.50}}"#;
    let sent = format!("{{ \"id\": \"\\u0061\" ,\"method\":\"tools\\/call\", {params} }}\n");
    ends.client.write(sent.as_bytes()).await;
    let line = String::from_utf8(ends.server.line().await.unwrap()).unwrap();
    let id = serde_json::from_str::<serde_json::Value>(&line).unwrap()["id"].to_string();
    let expected = sent.replace("\"\\u0061\"", &id).replace("\"t\"", &id);
    assert_eq!(line, expected);

    let answer = format!("{{\"result\" : {{ \"z\":1.50 }}, \"id\" :{id} }}\r\n");
    ends.server.write(answer.as_bytes()).await;
    let told = String::from_utf8(ends.client.line().await.unwrap()).unwrap();
    assert_eq!(told, answer.replace(&id, "\"\\u0061\""));
}

#[tokio::test]
async fn a_batch_with_calls_is_taken_apart_and_the_rest_of_it_passes() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::listed(&relay).await;
    let ping = r#"{"id": 1,"method":"ping"}"#;
    let charge = call(json!(2), "charge", json!({}));
    ends.client
        .write(format!("[{ping}, {charge},{ping}]\n").as_bytes())
        .await;
    let mut heard = [
        ends.server.line().await.unwrap(),
        ends.server.line().await.unwrap(),
    ];
    heard.sort();
    assert_eq!(heard[0], format!("[{ping},{ping}]\n").into_bytes());
    let asked: serde_json::Value = serde_json::from_slice(&heard[1]).unwrap();
    assert_eq!(asked["params"], charge["params"]);

    // A server may put its answers into a batch, too.
    let pong = r#"{"id": 1,"result":{}}"#;
    let answer = json!({ "id": asked["id"], "result": text("charged") });
    ends.server
        .write(format!("[{pong},{answer}]\n").as_bytes())
        .await;
    let mut heard = [
        ends.client.line().await.unwrap(),
        ends.client.line().await.unwrap(),
    ];
    heard.sort();
    assert_eq!(heard[0], format!("[{pong}]\n").into_bytes());
    let told: serde_json::Value = serde_json::from_slice(&heard[1]).unwrap();
    assert_eq!(told, json!({ "id": 2, "result": text("charged") }));
}

#[tokio::test]
async fn tools_are_listed_page_by_page_and_again_after_a_change() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::of(&relay);
    let look = call(json!(1), "look", json!({}));
    let reads = json!({ "readOnlyHint": true });
    ends.client.say(&look).await;
    let asked = ends.server.hear().await;
    let page = json!({ "tools": [{ "name": "charge" }], "nextCursor": "2" });
    ends.server.answer(&asked, page).await;
    let asked = ends.server.hear().await;
    assert_eq!(asked["params"], json!({ "cursor": "2" }));
    let page = json!({ "tools": [{ "name": "look", "annotations": reads }] });
    ends.server.answer(&asked, page).await;
    assert_eq!(ends.server.hear().await, look);

    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    ends.server.say(&changed).await;
    assert_eq!(ends.client.hear().await, changed);
    ends.client.say(&look).await;
    let asked = ends.server.hear().await;
    assert_eq!(asked["method"], "tools/list");
    ends.server
        .answer(&asked, json!({ "tools": [{ "name": "look" }] }))
        .await;
    // It is protected now, so it has another id.
    assert_ne!(ends.server.hear().await["id"], look["id"]);
}

/// Calls that arrive while the relay waits for the server's list wait no longer than it.
#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_list_its_tools_holds_all_waiting_calls_back_once() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::of(&relay);
    for n in 0..3 {
        let charge = call(json!(n), "charge", json!({ "n": n }));
        ends.client.say(&charge).await;
    }
    assert_eq!(ends.server.hear().await["method"], "tools/list");
    let asked = Instant::now();
    for _ in 0..3 {
        assert_eq!(ends.server.hear().await["method"], "tools/call");
    }
    assert_eq!(asked.elapsed().as_secs(), 10);
}

#[tokio::test]
async fn the_relay_asks_for_tools_with_what_the_protocol_put_into_the_call() {
    let relay = relay(RelaySettings::default());
    let mut ends = Ends::of(&relay);
    let mut look = call(json!(1), "look", json!({}));
    let version = json!({ "io.modelcontextprotocol/protocolVersion": "2026-07-28" });
    look["params"]["_meta"] = version.clone();
    look["params"]["_meta"]["progressToken"] = json!(1);
    ends.client.say(&look).await;
    let asked = ends.server.hear().await;
    assert_eq!(asked["params"], json!({ "_meta": version }));
    // A server without tools says so, and is not asked again.
    ends.server.fail(&asked, "method not found").await;
    assert_eq!(ends.server.hear().await["method"], "tools/call");
    ends.client.say(&call(json!(2), "other", json!({}))).await;
    assert_eq!(ends.server.hear().await["method"], "tools/call");
}
