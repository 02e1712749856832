//! What makes two calls one: the key, and nothing of the transport.

use mcp_idempotent_tests::database::{Database as _, Postgres, Stored};
use serde_json::json;

use super::{
    shop::Shop,
    site::{REVISIONS, Served, Site},
};
use crate::world::engine;

#[tokio::test]
async fn equal_ids_with_different_keys_are_two_calls_and_different_ids_with_one_key_are_one() {
    for revision in REVISIONS {
        for served in Served::ALL {
            let case = (revision, served);
            let database = Postgres::create().await;
            let idempotency = engine(database.store(4)).build().unwrap();
            let shop = Shop::new();
            let site = Site::of(shop.behind(&idempotency), served).await;
            let order = json!({ "name": "an order" });
            let mut numbers = Vec::new();
            for (id, key) in [(7, "a"), (7, "b"), (8, "a"), (9, "b")] {
                let caller = site.caller(revision).await;
                let answer = caller.answer(&caller.call(id, "order", &order, key)).await;
                numbers.push(answer["result"]["structuredContent"]["number"].clone());
            }
            assert_eq!(numbers, [1, 2, 1, 2], "{case:?}");
            assert_eq!(shop.runs(), 2, "{case:?}");
            assert_eq!(database.effects().await, ["an order"; 2], "{case:?}");
            assert_eq!(database.records().await, [Stored::Completed; 2]);

            // In one session, too, and both at once.
            let caller = site.caller(revision).await;
            let (one, two) = (
                caller.call(10, "order", &order, "c"),
                caller.call(11, "order", &order, "c"),
            );
            let (one, two) = tokio::join!(caller.answer(&one), caller.answer(&two));
            assert_eq!(one["result"]["structuredContent"]["number"], 3, "{one}");
            assert_eq!(two["result"]["structuredContent"]["number"], 3, "{two}");
            assert_eq!(shop.runs(), 3, "{case:?}");
        }
    }
}
