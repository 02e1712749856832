//! `http_postgres`, as several processes on one database.

pub(super) mod shop;

use std::time::Duration;

use mcp_idempotent_tower::{core::ErrorKind, wire};
use rmcp::{
    ErrorData, Peer, RoleClient, ServiceError,
    model::{CallToolRequestParams, CallToolResult, RequestMetaObject},
};
use serde_json::{Value, json};
use tokio::{process::Command, task::JoinSet, time::timeout};

use self::shop::{ALICE, BOB, Shop, next};
use super::{Client, PATIENCE, is_replay, tool};

fn initialize() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": { "name": "test", "version": "1" }
        }
    })
}

async fn call(
    client: &Peer<RoleClient>,
    tool: &'static str,
    key: Option<&str>,
    arguments: Value,
) -> Result<CallToolResult, ErrorData> {
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = arguments.as_object().cloned();
    if let Some(key) = key {
        let mut meta = RequestMetaObject::new();
        meta.insert("idempotency-key".into(), key.into());
        params.meta = Some(meta);
    }
    match timeout(PATIENCE, client.call_tool(params)).await.unwrap() {
        Ok(result) => Ok(result),
        Err(ServiceError::McpError(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// Two kettles, under this key.
async fn order(client: &Client, key: &str) -> Result<CallToolResult, ErrorData> {
    let kettles = json!({ "item": "kettle", "quantity": 2 });
    call(client.peer(), "place_order", Some(key), kettles).await
}

fn content(result: &CallToolResult) -> &Value {
    assert_eq!(result.is_error, Some(false), "{result:?}");
    result.structured_content.as_ref().unwrap()
}

#[tokio::test]
async fn an_order_sent_again_to_another_process_is_placed_once_for_each_user() {
    Shop::open("users", async |shop| {
        let (one, other) = (shop.start(&[]).await, shop.start(&[]).await);
        let alice = one.client(ALICE).await;
        let alice_elsewhere = other.client(ALICE).await;
        let bob = other.client(BOB).await;

        let first = order(&alice, "order-1").await.unwrap();
        let retry = order(&alice_elsewhere, "order-1").await.unwrap();
        assert!(!is_replay(&first), "{first:?}");
        assert!(is_replay(&retry), "{retry:?}");
        assert_eq!(content(&first)["placed_by"], "alice");
        assert_eq!(content(&first), content(&retry));
        assert_eq!(shop.orders().await, 1);

        // Another user's key is another key, and nothing of the first result is seen.
        let of_bob = order(&bob, "order-1").await.unwrap();
        assert!(!is_replay(&of_bob), "{of_bob:?}");
        assert_eq!(content(&of_bob)["placed_by"], "bob");
        assert_ne!(content(&first)["order_id"], content(&of_bob)["order_id"]);
        assert_eq!(shop.orders().await, 2);
        let listed = call(bob.peer(), "list_orders", None, json!({}))
            .await
            .unwrap();
        assert_eq!(content(&listed)["orders"], json!([content(&of_bob)]));

        assert_eq!(one.calls("place_order", "executed").await, 1);
        assert_eq!(one.calls("place_order", "replayed").await, 0);
        assert_eq!(other.calls("place_order", "executed").await, 1);
        assert_eq!(other.calls("place_order", "replayed").await, 1);
    })
    .await;
}

#[tokio::test]
async fn orders_sent_to_two_processes_at_once_under_one_key_are_one() {
    Shop::open("at_once", async |shop| {
        let (one, other) = (shop.start(&[]).await, shop.start(&[]).await);
        let mut running = JoinSet::new();
        for process in [&one, &other] {
            for _ in 0..4 {
                let alice = process.client(ALICE).await;
                running.spawn(async move { order(&alice, "order-1").await.unwrap() });
            }
        }
        let results = running.join_all().await;
        let executed = results.iter().filter(|result| !is_replay(result)).count();
        assert_eq!(executed, 1, "{results:?}");
        for result in &results {
            assert_eq!(content(result), content(&results[0]));
        }
        assert_eq!(shop.orders().await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_user_whose_grant_was_withdrawn_gets_a_refusal_and_no_replay() {
    Shop::open("withdrawn", async |shop| {
        let before = shop.start(&[]).await;
        let bob = before.client(BOB).await;
        let first = order(&bob, "order-1").await.unwrap();
        assert!(is_replay(&order(&bob, "order-1").await.unwrap()));

        let after = shop.start(&["--withdrawn", "bob"]).await;
        let bob = after.client(BOB).await;
        for key in ["order-1", "order-2"] {
            let refusal = order(&bob, key).await.unwrap_err();
            let data = refusal.data.as_ref().unwrap();
            assert_eq!(data["type"], ErrorKind::Unauthorized.as_str());
            let text = serde_json::to_string(&refusal).unwrap();
            assert!(text.contains("no longer"), "{text}");
            assert!(!text.contains("kettle"), "{text}");
            assert!(!text.contains("order_id"), "{text}");
        }
        assert_eq!(shop.orders().await, 1, "{first:?}");
        let listed = call(bob.peer(), "list_orders", None, json!({})).await;
        // Without a key a model made the call, which sees results only.
        let listed = serde_json::to_value(listed.unwrap()).unwrap();
        assert_eq!(listed["isError"], true, "{listed}");
        let told = listed["content"][0]["text"].as_str().unwrap();
        assert!(told.contains("no longer"), "{told}");
        assert_eq!(after.calls("place_order", "unauthorized").await, 2);
        assert_eq!(after.calls("place_order", "replayed").await, 0);

        // It is bob's grant alone.
        let alice = after.client(ALICE).await;
        assert!(!is_replay(&order(&alice, "order-1").await.unwrap()));
    })
    .await;
}

#[tokio::test]
async fn a_request_without_a_known_token_is_401() {
    Shop::open("unknown", async |shop| {
        let process = shop.start(&[]).await;
        for (authorization, status) in [
            (String::new(), 401),
            ("Authorization: Bearer nonsense\r\n".into(), 401),
            (format!("Authorization: Basic {ALICE}\r\n"), 401),
            (format!("Authorization: {ALICE}\r\n"), 401),
            (format!("Authorization: Bearer {ALICE}x\r\n"), 401),
            (format!("Authorization: bearer {ALICE}\r\n"), 200),
        ] {
            let answer = process.post(&authorization, &initialize()).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{authorization} {answer}"
            );
            assert_eq!(
                answer.to_lowercase().contains("www-authenticate: bearer"),
                status == 401,
                "{answer}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn tools_that_know_nothing_of_keys_are_protected_too() {
    Shop::open("layer", async |shop| {
        let (one, other) = (shop.start(&[]).await, shop.start(&[]).await);
        let (alice, elsewhere) = (one.client(ALICE).await, other.client(ALICE).await);
        // The printer of the other process has printed nothing yet, and would count from 1 too.
        let arguments = json!({ "order_id": 7 });
        let print = async |client: &Client, key| {
            call(client.peer(), "print_label", Some(key), arguments.clone())
                .await
                .unwrap()
        };
        print(&alice, "label-1").await;
        let second = print(&alice, "label-2").await;
        let retry = print(&elsewhere, "label-2").await;
        assert!(is_replay(&retry), "{retry:?}");
        assert_eq!(content(&retry), &json!({ "order_id": 7, "printed": 2 }));
        assert_eq!(content(&second), content(&retry));

        // A model that has been told of the argument sends the key itself.
        let tools = alice.list_all_tools().await.unwrap();
        let properties = &tool(&tools, "place_order").input_schema["properties"];
        assert!(properties["idempotency_key"].is_object(), "{properties}");
        let arguments = json!({ "item": "pan", "quantity": 1, "idempotency_key": "order-1" });
        let first = call(alice.peer(), "place_order", None, arguments.clone()).await;
        let retry = call(elsewhere.peer(), "place_order", None, arguments).await;
        assert!(!is_replay(&first.unwrap()));
        assert!(is_replay(&retry.unwrap()));
        assert_eq!(shop.orders().await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_key_in_the_place_that_sep_3182_chose_is_found() {
    Shop::open("lifted", async |shop| {
        let process = shop.start(&[]).await;
        let signed_in = format!("Authorization: Bearer {ALICE}\r\n");
        let answer = process.post(&signed_in, &initialize()).await;
        assert!(answer.contains("\"idempotency\":{}"), "{answer}");
        let session = answer
            .lines()
            .find(|line| line.to_lowercase().starts_with("mcp-session-id:"))
            .expect(&answer);
        let headers = format!("{signed_in}{session}\r\n");
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        process.post(&headers, &initialized).await;
        for (id, is_replay) in [(2, false), (3, true)] {
            let placed = json!({
                "jsonrpc": "2.0", "id": id, "method": "tools/call",
                "params": {
                    "name": "place_order", "idempotencyKey": "order-1",
                    "arguments": { "item": "kettle", "quantity": 2 }
                }
            });
            let answer = process.post(&headers, &placed).await;
            assert!(answer.contains("\"order_id\":1"), "{answer}");
            assert_eq!(answer.contains(wire::REPLAYED), is_replay, "{answer}");
        }
        assert_eq!(shop.orders().await, 1);
    })
    .await;
}

#[cfg(unix)]
#[tokio::test]
async fn ctrl_c_waits_for_the_order_that_is_being_placed() {
    Shop::open("stopped", async |shop| {
        let mut process = shop.start(&[]).await;
        let alice = process.client(ALICE).await;
        let mut held = shop.pool.begin().await.unwrap();
        sqlx::query("LOCK TABLE orders IN SHARE MODE")
            .execute(&mut *held)
            .await
            .unwrap();
        let placing = tokio::spawn(async move { order(&alice, "order-1").await });
        let is_waiting = "SELECT EXISTS (SELECT FROM pg_locks \
             WHERE relation = 'orders'::regclass AND NOT granted)";
        let waits = async {
            while !sqlx::query_scalar::<_, bool>(is_waiting)
                .fetch_one(&shop.pool)
                .await
                .unwrap()
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, waits).await.unwrap();

        let id = process.child.id().unwrap().to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status().await;
        assert!(sent.unwrap().success());
        assert_eq!(next(&mut process.said).await, "stopping");
        held.commit().await.unwrap();
        let ended = timeout(PATIENCE, process.child.wait()).await;
        let ended = ended.unwrap().unwrap();
        assert!(ended.success(), "{ended}");
        assert_eq!(shop.orders().await, 1);
        // The caller has no answer, or has the answer; a retry has it in any case.
        placing.abort();
        let process = shop.start(&[]).await;
        let alice = process.client(ALICE).await;
        assert!(is_replay(&order(&alice, "order-1").await.unwrap()));
    })
    .await;
}
