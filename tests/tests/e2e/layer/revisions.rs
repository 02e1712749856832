//! The first call under one protocol revision, its retry under another.

use mcp_idempotent_tests::database::{Database as _, Postgres, Stored};
use mcp_idempotent_tower::wire;
use rmcp::model::CallToolResult;
use serde_json::{Value, json};

use super::{
    shop::Shop,
    site::{MODERN, REVISIONS, Served, Site},
};
use crate::world::engine;

/// An answer apart from what differs between any two calls: the number that the handler gave it.
fn numbered(mut answer: Value, number: u32) -> Value {
    let result = &mut answer["result"];
    assert_eq!(result["structuredContent"]["number"], number, "{result}");
    let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, result["structuredContent"]);
    result["structuredContent"]["number"] = 0.into();
    result["content"][0]["text"] = Value::Null;
    answer
}

/// Takes the mark of a replay out of `answer`.
fn take_mark(answer: &mut Value) -> bool {
    let result = answer["result"].as_object_mut().unwrap();
    let Some(meta) = result.get_mut("_meta").and_then(Value::as_object_mut) else {
        return false;
    };
    let was_there = meta.remove(wire::REPLAYED).is_some();
    if meta.is_empty() {
        result.remove("_meta");
    }
    was_there
}

#[tokio::test]
async fn a_retry_under_another_revision_gets_the_first_result_in_its_readers_form() {
    for served in Served::ALL {
        let database = Postgres::create().await;
        let idempotency = engine(database.store(4)).build().unwrap();
        let shop = Shop::new();
        let site = Site::of(shop.behind(&idempotency), served).await;
        let mut keys = 0;
        for first in REVISIONS {
            for second in REVISIONS {
                let case = (served, first, second);
                let order = json!({ "name": "an order" });
                let key = format!("{first}-{second}");
                let caller = site.caller(first).await;
                let answer = caller.answer(&caller.call(1, "order", &order, &key)).await;
                let number = shop.runs();
                numbered(answer, number);

                let reader = site.caller(second).await;
                let mut retry = reader.answer(&reader.call(2, "order", &order, &key)).await;
                assert!(take_mark(&mut retry), "{case:?}: {retry}");
                assert_eq!(shop.runs(), number, "{case:?}");
                // rmcp's own reader takes it.
                let read: CallToolResult = serde_json::from_value(retry["result"].clone()).unwrap();
                assert_eq!(read.is_error, Some(false), "{case:?}");
                let kind = retry["result"].get("resultType");
                let expected = json!("complete");
                assert_eq!(kind, (second == MODERN).then_some(&expected), "{case:?}");
                let retry = numbered(retry, number);

                // What a first call under that revision gets.
                let mut like = reader
                    .answer(&reader.call(2, "order", &order, &format!("{key}-new")))
                    .await;
                assert!(!take_mark(&mut like));
                assert_eq!(retry, numbered(like, number + 1), "{case:?}");
                keys += 2;
            }
        }
        assert_eq!(database.effects().await.len(), keys);
        assert_eq!(database.records().await, vec![Stored::Completed; keys]);
    }
}

#[tokio::test]
async fn a_duplicate_under_another_revision_joins_the_running_call() {
    use super::shop::{Place, Stop};
    use crate::world::until;

    for first in REVISIONS {
        for second in REVISIONS {
            let database = Postgres::create().await;
            let idempotency = engine(database.store(4)).build().unwrap();
            let stop = Stop::at(Some(Place::InHandler));
            let shop = Shop::stopping(&stop);
            let site = Site::of(shop.behind(&idempotency), Served::InSessions).await;
            let order = json!({ "name": "an order" });
            let answer = async |revision, id| {
                let caller = site.caller(revision).await;
                let body = caller.call(id, "order", &order, "k");
                caller.answer(&body).await
            };
            let second_answer = async {
                stop.arrival().await;
                answer(second, 2).await
            };
            let release = async {
                until(async || idempotency.engine().waiting() == 1).await;
                stop.open();
            };
            let (one, two, ()) = tokio::join!(answer(first, 1), second_answer, release);
            for (revision, answer) in [(first, one), (second, two)] {
                let kind = answer["result"].get("resultType");
                let expected = json!("complete");
                assert_eq!(kind, (revision == MODERN).then_some(&expected), "{answer}");
                numbered(answer, 1);
            }
            assert_eq!(database.effects().await, ["an order"]);
        }
    }
}
