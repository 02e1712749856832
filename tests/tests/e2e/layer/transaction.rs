//! `Tx<PostgresStore>`: what a handler writes through it and the record are one transaction.

use std::{collections::HashMap, sync::Arc};

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres, Stored},
};
use serde_json::json;

use super::shop::{Place, Shop, Stop};
use crate::world::engine;

#[tokio::test]
async fn effect_and_record_are_written_by_one_transaction() {
    let database = Postgres::create().await;
    let idempotency = engine(database.store(4)).build().unwrap();
    let stop = Stop::at(Some(Place::InHandler));
    let shop = Shop::stopping(&stop);
    let client = Client::of(shop.behind(&idempotency)).await;
    let order = call("order", json!({ "name": "an order" })).with_key("k");
    let first = async { client.call(order.clone()).await };
    let outside = async {
        stop.arrival().await;
        // The handler has written, and nobody sees it.
        assert!(database.effects().await.is_empty());
        assert!(!database.records().await.contains(&Stored::Completed));
        stop.open();
    };
    let (first, ()) = tokio::join!(first, outside);
    // The handler writes in a savepoint of the transaction, whose number is drawn after its own.
    let same = "SELECT count(*) FROM records, effects \
                WHERE effects.xmin::text::bigint - records.xmin::text::bigint BETWEEN 0 AND 1";
    assert_eq!(database.integer(same).await, 1);
    assert_eq!(database.records().await, [Stored::Completed]);
    let retry = client.call(order).await;
    assert!(retry.is_replay());
    assert_eq!(retry.unmarked(), first.json);
    assert_eq!(shop.runs(), 1);
}

#[tokio::test]
async fn an_error_result_is_recorded_without_its_effect_and_a_protocol_error_leaves_nothing() {
    let database = Postgres::create().await;
    let idempotency = engine(database.store(4)).build().unwrap();
    let shop = Shop::new();
    let client = Client::of(shop.behind(&idempotency)).await;
    let order = json!({ "name": "an order" });
    let failing = call("order_and_fail", order.clone()).with_key("f");
    for number in 1..=2 {
        let answer = client.call(failing.clone()).await;
        assert_eq!(answer.error()["message"], format!("failed {number}"));
        assert!(database.records().await.is_empty());
    }
    let sold_out = call("order_what_is_sold_out", order).with_key("s");
    for is_replay in [false, true] {
        let answer = client.call(sold_out.clone()).await;
        assert_eq!(answer.result()["isError"], true, "{}", answer.line);
        assert_eq!(answer.text(), "sold out 3");
        assert_eq!(answer.is_replay(), is_replay);
        assert_eq!(database.records().await, [Stored::Completed]);
    }
    assert!(database.effects().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_on_one_database_run_each_logical_call_once() {
    const CALLS: usize = 200;
    const KEYS: usize = 60;
    const TOOLS: [&str; 3] = ["order", "send_back", "order_what_is_sold_out"];
    let database = Postgres::create().await;
    let mut clients = Vec::new();
    let mut shops = Vec::new();
    for _ in 0..2 {
        // Nothing but the database is shared.
        let idempotency = engine(database.store(4)).build().unwrap();
        let shop = Shop::new();
        clients.push(Arc::new(Client::of(shop.behind(&idempotency)).await));
        shops.push(shop);
    }
    let calls: Vec<_> = (0..CALLS)
        .map(|n| {
            let client = Arc::clone(&clients[n % 2]);
            // Each key comes to both instances, and one call in ten has none.
            let key = (n % 10 != 9).then(|| format!("key-{}", n / 2 % KEYS));
            let logical = key.clone().unwrap_or_else(|| format!("call-{n}"));
            let tool = TOOLS[n / 2 % KEYS % TOOLS.len()];
            tokio::spawn(async move {
                let params = call(tool, json!({ "name": logical }));
                let params = match key {
                    Some(key) => params.with_key(key),
                    None => params,
                };
                let answer = client.call(params).await;
                ((tool, logical), answer.unmarked())
            })
        })
        .collect();
    let mut answers = HashMap::new();
    for call in calls {
        let (logical, answer) = call.await.unwrap();
        assert!(answer["result"].is_object(), "{logical:?}: {answer}");
        let first = answers.entry(logical).or_insert_with(|| answer.clone());
        assert_eq!(*first, answer);
    }
    assert!(answers.len() < CALLS / 2, "most calls are duplicates");
    let runs: u32 = shops.iter().map(Shop::runs).sum();
    assert_eq!(usize::try_from(runs).unwrap(), answers.len());
    assert!(shops.iter().all(|shop| shop.runs() > 0), "both worked");
    // A result that is an error has no effect.
    let mut successes: Vec<String> = answers
        .into_keys()
        .filter(|(tool, _)| *tool != TOOLS[2])
        .map(|(_, name)| name)
        .collect();
    successes.sort();
    let mut effects = database.effects().await;
    effects.sort();
    assert_eq!(effects, successes);
}
