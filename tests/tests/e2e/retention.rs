//! Records past their expiry, and records of slow handlers.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database, Stored},
    ledger::charge,
};
use mcp_idempotent_tower::Store as _;
use serde_json::json;

use crate::{
    processes::{Site, assert_speaks_of_no_lock},
    server::text,
    world::{Gate, World, on_each_store, run, writing},
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

async fn calls_that_race_for_an_expired_record_have_one_new_effect_each_time<D: Database>() {
    let site = Site::<D>::new().await;
    let processes = [site.start().await, site.start().await];
    for round in 1..=5 {
        let racing = (0..16).map(|n| processes[n % 2].client.call(charge("a", false)));
        let answers = join_all(racing).await;
        for answer in &answers {
            assert_speaks_of_no_lock(answer);
            answer.result();
            assert_eq!(answer.unmarked(), answers[0].unmarked());
        }
        let firsts = answers.iter().filter(|answer| !answer.is_replay()).count();
        assert_eq!(firsts, 1);
        assert_eq!(site.ledger.runs("a"), round);
        assert_eq!(site.database.effects().await.len(), round);
        assert_eq!(site.database.records().await, [Stored::Completed]);
        site.database.age(DAY + Duration::from_secs(1)).await;
    }
}

async fn different_calls_that_race_for_an_expired_key_have_one_effect<D: Database>() {
    let site = Site::<D>::new().await;
    let processes = [site.start().await, site.start().await];
    for round in 1..=5 {
        let racing = (0..16).map(|n| {
            let call = call("charge", json!({ "name": format!("call-{n}") })).with_key("k");
            processes[n % 2].client.call(call)
        });
        for answer in join_all(racing).await {
            assert_speaks_of_no_lock(&answer);
            if answer.is_failure() {
                assert_eq!(answer.refusal(), "idempotency_key_conflict");
            }
        }
        assert_eq!(site.database.effects().await.len(), round);
        assert_eq!(site.database.records().await, [Stored::Completed]);
        site.database.age(DAY + Duration::from_secs(1)).await;
    }
}

async fn an_expired_record_and_a_new_one_are_swept_alike<D: Database>() {
    let world = World::<D>::new(writing::<D, _>(run, |call| {
        text(format!("run {}", call.earlier))
    }))
    .await;
    let keyed = |key: &str| call("work", json!({ "n": 1 })).with_key(key);
    world.client.call(keyed("old")).await.success();
    world.database.age(DAY + Duration::from_secs(1)).await;
    world.client.call(keyed("new")).await.success();
    assert_eq!(world.store.sweep(100).await.unwrap(), 1);
    world.assert_records(&[Stored::Completed]).await;
    assert!(world.client.call(keyed("new")).await.is_replay());
    assert!(!world.client.call(keyed("old")).await.is_replay());
}

// A handler that takes longer than its window: were the window counted from its start, the result
// would have expired before it was recorded, and the retry would run.
async fn the_window_begins_when_the_handler_has_ended<D: Database>() {
    let gate = Gate::new();
    let world = World::<D>::new(gate.after::<D, _>(run, |_| text("done"))).await;
    let unkeyed = || call("work", json!({ "n": 1 }));
    let sent = world.client.send(unkeyed()).await.unwrap();
    gate.arrival().await;
    let began = world.database.integer(D::CLOCK).await;
    let mut still_running = began;
    while still_running < began + 20_000 {
        still_running = world.database.integer(D::CLOCK).await;
    }
    gate.open();
    sent.answer().await.unwrap();
    let expiry = world.database.integer(D::EXPIRY).await;
    let window = 10 * 60 * 1_000_000;
    assert!(
        expiry - window >= still_running,
        "the window began {} microseconds too early",
        still_running + window - expiry
    );
    // Replayed for the whole window, and not longer.
    world.database.age(Duration::from_secs(9 * 60 + 50)).await;
    assert!(world.client.call(unkeyed()).await.is_replay());
    world.database.age(Duration::from_secs(30)).await;
    gate.open();
    assert!(!world.client.call(unkeyed()).await.is_replay());
    world.assert_effects(&["run 0", "run 1"]).await;
}

on_each_store! {
    calls_that_race_for_an_expired_record_have_one_new_effect_each_time,
    different_calls_that_race_for_an_expired_key_have_one_effect,
    an_expired_record_and_a_new_one_are_swept_alike,
    the_window_begins_when_the_handler_has_ended,
}
