//! What handlers do with their session that is allowed, and must not reach the record.

use std::time::Duration;

use futures_util::{StreamExt as _, future::join_all};
use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Postgres, Stored, effect},
};
use mcp_idempotent_tower::store::postgres::Isolation;
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::{
    server::{Server, is_error, protocol_error, text},
    world::{Gate, World, engine, on_each_store, until},
};

fn keyed(n: i64) -> CallToolRequestParams {
    call("work", json!({ "n": n })).with_key(format!("key-{n}"))
}

#[tokio::test]
async fn what_a_handler_sets_for_its_transaction_does_not_reach_the_record() {
    const SETTINGS: [&str; 11] = [
        "search_path = ''",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
        "backslash_quote = off",
        "TIME ZONE 'Pacific/Chatham'",
        "datestyle = 'German, DMY'",
        "intervalstyle = 'sql_standard'",
        "extra_float_digits = -15",
        "row_security = off",
        "default_transaction_isolation = 'serializable'",
        "plan_cache_mode = 'force_generic_plan'",
    ];
    let world = World::<Postgres>::new(|connection, call| {
        Box::pin(async move {
            effect::<Postgres>(connection, &format!("effect {}", call.n))
                .await
                .unwrap();
            let setting = SETTINGS[usize::try_from(call.n).unwrap()];
            Postgres::run(connection, &format!("SET LOCAL {setting}"))
                .await
                .unwrap();
            text(format!("it's \\ {setting} \u{0}"))
        })
    })
    .await;
    for (n, setting) in SETTINGS.iter().enumerate() {
        let params = keyed(i64::try_from(n).unwrap());
        let first = world.client.call(params.clone()).await;
        assert!(first.success().contains(setting), "{}", first.line);
        let retry = world.client.call(params).await;
        assert!(retry.is_replay(), "{setting}");
        assert_eq!(retry.unmarked(), first.json, "{setting}");
    }
    let days = "SELECT count(*) FROM records \
                WHERE expires_at - completed_at = interval '24 hours' \
                AND abs(extract(epoch FROM clock_timestamp() - completed_at)) < 60";
    let recorded = i64::try_from(SETTINGS.len()).unwrap();
    assert_eq!(world.database.integer(days).await, recorded);
}

async fn savepoints_by_raw_sql_are_harmless<D: Database>() {
    let world = World::<D>::new(|connection, call| {
        Box::pin(async move {
            effect::<D>(connection, "before").await.unwrap();
            D::run(connection, "SAVEPOINT mine").await.unwrap();
            effect::<D>(connection, "inside").await.unwrap();
            match call.n {
                0 => {}
                1 => D::run(connection, "RELEASE mine").await.unwrap(),
                _ => D::run(connection, "ROLLBACK TO mine").await.unwrap(),
            }
            text("done")
        })
    })
    .await;
    for (n, expected) in [
        (0, vec!["before", "inside"]),
        (1, vec!["before", "inside"]),
        (2, vec!["before"]),
    ] {
        assert_eq!(world.client.call(keyed(n)).await.success(), "done");
        assert!(world.client.call(keyed(n)).await.is_replay());
        world.assert_effects(&expected).await;
        world.database.execute("DELETE FROM effects").await;
    }
}

/// A savepoint left open by a handler that answers with an error.
async fn an_open_savepoint_is_rolled_back_with_the_rest<D: Database>() {
    let world = World::<D>::new(|connection, call| {
        Box::pin(async move {
            effect::<D>(connection, "before").await.unwrap();
            D::run(connection, "SAVEPOINT mine").await.unwrap();
            effect::<D>(connection, "inside").await.unwrap();
            match call.n {
                0 => is_error("no"),
                1 => protocol_error("no"),
                _ => panic!("the handler panics"),
            }
        })
    })
    .await;
    for n in 0..3 {
        let first = world.client.call(keyed(n)).await;
        world.assert_effects(&[]).await;
        let retry = world.client.call(keyed(n)).await;
        assert_eq!(retry.unmarked(), first.unmarked());
    }
    world.assert_records(&[Stored::Completed]).await;
}

#[tokio::test]
async fn a_query_that_the_handler_gave_up_does_not_disturb_the_commit() {
    let world = World::<Postgres>::new(|connection, call| {
        Box::pin(async move {
            effect::<Postgres>(connection, &format!("effect {}", call.n))
                .await
                .unwrap();
            if call.n == 0 {
                let mut rows = sqlx::query("SELECT generate_series(1, 100000)").fetch(connection);
                rows.next().await.unwrap().unwrap();
            } else {
                let slow = Postgres::run(connection, "SELECT pg_sleep(0.3)");
                tokio::time::timeout(Duration::from_millis(20), slow)
                    .await
                    .unwrap_err();
            }
            text("done")
        })
    })
    .await;
    for n in [0, 1] {
        assert_eq!(world.client.call(keyed(n)).await.success(), "done");
        assert!(world.client.call(keyed(n)).await.is_replay());
    }
    world.assert_effects(&["effect 0", "effect 1"]).await;
}

#[tokio::test]
async fn a_handler_that_leaves_its_transaction_idle_for_too_long_is_not_committed() {
    let database = Postgres::create().await;
    let store = database
        .builder(database.pool(database.options(), 2))
        .with_idle_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let gate = Gate::new();
    let inner = gate.clone();
    let world = World::on(
        database,
        store,
        |_| {},
        move |connection, call| {
            let gate = inner.clone();
            Box::pin(async move {
                effect::<Postgres>(connection, &format!("run {}", call.earlier))
                    .await
                    .unwrap();
                if call.earlier == 0 {
                    gate.pass().await;
                }
                text("done")
            })
        },
    )
    .await;
    let sent = world.client.send(keyed(1)).await.unwrap();
    gate.arrival().await;
    let holding = "SELECT count(*) FROM pg_locks WHERE relation = 'effects'::regclass";
    until(async || world.database.integer(holding).await == 0).await;
    gate.open();
    let answer = sent.answer().await.unwrap();
    assert_eq!(answer.refusal(), "idempotency_not_committed");
    assert_eq!(answer.refused()["action"], "retry_same_key");
    assert_eq!(world.client.call(keyed(1)).await.success(), "done");
    world.assert_effects(&["run 1"]).await;
}

// Two transactions that each read what the other writes: Postgres lets one commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_serialised_is_told_to_retry_with_the_same_key() {
    let database = Postgres::create().await;
    let store = database
        .builder(database.pool(database.options(), 4))
        .with_isolation(Isolation::Serializable)
        .build()
        .unwrap();
    let gate = Gate::new();
    let inner = gate.clone();
    let world = World::on(
        database,
        store,
        |_| {},
        move |connection, call| {
            let gate = inner.clone();
            Box::pin(async move {
                let counted = Postgres::run(connection, "SELECT count(*) FROM effects").await;
                let written = effect::<Postgres>(connection, &format!("effect {}", call.n)).await;
                if call.earlier < 2 {
                    gate.pass().await;
                }
                match counted.and(written) {
                    Ok(()) => text("done"),
                    Err(_) => protocol_error("the database failed"),
                }
            })
        },
    )
    .await;
    let (left, right) = (
        world.client.send(keyed(1)).await.unwrap(),
        world.client.send(keyed(2)).await.unwrap(),
    );
    gate.arrival().await;
    gate.arrival().await;
    gate.open();
    gate.open();
    let answers = join_all([left.answer(), right.answer()]).await;
    let mut failed = 0;
    for answer in answers {
        let answer = answer.unwrap();
        if answer.is_failure() {
            failed += 1;
            assert_eq!(answer.refusal(), "idempotency_not_committed");
            assert_eq!(answer.refused()["action"], "retry_same_key");
        }
    }
    assert_eq!(failed, 1, "one commits, one does not");
    for n in [1, 2] {
        assert_eq!(world.client.call(keyed(n)).await.success(), "done");
    }
    world.assert_effects(&["effect 1", "effect 2"]).await;
}

/// Errors that are recorded, by duplicates in several processes: nobody gets two answers.
async fn duplicates_of_a_failing_call_over_two_servers_get_one_recorded_error<D: Database>() {
    let database = D::create().await;
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut clients = Vec::new();
    for _ in 0..2 {
        let runs = std::sync::Arc::clone(&runs);
        let server = Server::<D>::new(
            engine(database.store(4)).build().unwrap(),
            move |connection, _| {
                let run = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                Box::pin(async move {
                    effect::<D>(connection, "undone").await.unwrap();
                    is_error(format!("error of run {run}"))
                })
            },
        );
        clients.push(Client::of(server).await);
    }
    let racing = (0..48).map(|n| {
        let client = &clients[n % 2];
        async move {
            for _ in 0..50 {
                let answer = client.call(keyed(1)).await;
                if !answer.is_failure() {
                    return answer;
                }
                assert_eq!(answer.refusal(), "idempotency_key_in_progress");
            }
            panic!("fifty times in progress");
        }
    });
    let answers = join_all(racing).await;
    for answer in &answers {
        assert_eq!(answer.unmarked(), answers[0].unmarked());
    }
    assert!(database.effects().await.is_empty());
    assert_eq!(database.records().await, [Stored::Completed]);
}

on_each_store! {
    savepoints_by_raw_sql_are_harmless,
    an_open_savepoint_is_rolled_back_with_the_rest,
    duplicates_of_a_failing_call_over_two_servers_get_one_recorded_error,
}
