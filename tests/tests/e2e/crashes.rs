//! Processes, sessions and servers that die.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, call},
    database::{Database, Postgres, Stored, effect},
    kit::cluster::Cluster,
    ledger::{Pause, Process, charge},
};
use mcp_idempotent_tower::store::postgres::PostgresStore;
use serde_json::{Value, json};

use crate::{
    processes::{Site, assert_speaks_of_no_lock},
    server::text,
    wire::assert_wire,
    world::{Gate, World, on_each_store, until, within_patience},
};

/// Repeats a call until it has a result: what a client does that was told to retry.
async fn until_answered(process: &Process, name: &str, hold: bool) -> Answer {
    within_patience(async {
        loop {
            let answer = process.client.call(charge(name, hold)).await;
            assert_speaks_of_no_lock(&answer);
            if !answer.is_failure() {
                return answer;
            }
            // The handler's own error, when the database fails under it, says nothing of retries.
            let action = answer.action();
            assert!(
                action.is_null() || action == "retry_same_key" || action == "wait",
                "{}",
                answer.line
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

async fn a_kill_before_the_commit_leaves_nothing_and_the_retry_runs<D: Database>() {
    let site = Site::<D>::new().await;
    let first = site
        .start_with("first", |settings| {
            settings.pause = Some(Pause::BeforeCommit);
        })
        .await;
    let sent = first.client.send(charge("a", false)).await.unwrap();
    until(async || site.ledger.paused("a") == 1).await;
    first.kill().await;
    sent.answer().await.unwrap_err();
    assert!(site.database.records().await.is_empty());
    assert!(site.database.effects().await.is_empty());

    let second = site.start().await;
    let answer = until_answered(&second, "a", false).await;
    assert!(!answer.is_replay());
    assert_eq!(site.ledger.runs("a"), 2);
    assert_eq!(site.database.effects().await, ["a"]);
}

async fn a_kill_after_the_commit_and_before_the_answer_replays<D: Database>() {
    let site = Site::<D>::new().await;
    let first = site
        .start_with("first", |settings| {
            settings.pause = Some(Pause::AfterCommit);
        })
        .await;
    let sent = first.client.send(charge("a", false)).await.unwrap();
    until(async || site.ledger.paused("a") == 1).await;
    first.kill().await;
    sent.answer().await.unwrap_err();
    assert_eq!(site.database.records().await, [Stored::Completed]);

    let second = site.start().await;
    let answer = until_answered(&second, "a", false).await;
    assert!(answer.is_replay());
    assert_eq!(answer.result()["structuredContent"]["name"], "a");
    assert_eq!(site.ledger.runs("a"), 1);
    assert_eq!(site.database.effects().await, ["a"]);
}

async fn a_kill_in_the_middle_of_64_duplicates_leaves_one_effect<D: Database>() {
    let site = Site::<D>::new().await;
    let (dying, surviving) = (site.start().await, site.start().await);
    let mut lost = Vec::new();
    for _ in 0..32 {
        lost.push(dying.client.send(charge("a", true)).await.unwrap());
    }
    site.until_runs("a", 1).await;
    let mut sent = Vec::new();
    for _ in 0..32 {
        sent.push(surviving.client.send(charge("a", true)).await.unwrap());
    }
    dying.kill().await;
    for sent in lost {
        sent.answer().await.unwrap_err();
    }
    // The surviving process takes over: the database has noticed the death.
    site.until_runs("a", 2).await;
    let restarted = site.start().await;
    let again = restarted.client.send(charge("a", true)).await.unwrap();
    site.ledger.release();
    let mut answers = Vec::new();
    for sent in sent.into_iter().chain([again]) {
        answers.push(within_patience(sent.answer()).await.unwrap());
    }
    for answer in &answers {
        assert_eq!(answer.unmarked(), answers[0].unmarked());
        answer.result();
    }
    assert_eq!(
        answers.iter().filter(|answer| !answer.is_replay()).count(),
        1
    );
    assert_eq!(site.ledger.runs("a"), 2);
    assert_eq!(site.database.effects().await, ["a"]);
    assert_eq!(site.database.records().await, [Stored::Completed]);
}

/// A few numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const SEED: u64 = 0x005e_ed0f_1de4;
const KILLS: u64 = 30;

async fn thirty_kills_at_any_moment_leave_one_effect_for_each_call<D: Database>() {
    let site = Site::<D>::new().await;
    let mut random = Random(SEED);
    let mut open: Vec<String> = Vec::new();
    let mut results: Vec<(String, Value)> = Vec::new();
    let mut calls = 0;
    let mut lost_answers = 0;
    for kill in 0..=KILLS {
        let process = site.start().await;
        // So that the kill finds calls at work, and not connections being made.
        let warm = format!("warm-{kill}");
        let warm = until_answered(&process, &warm, false).await;
        results.push((format!("warm-{kill}"), warm.unmarked()));
        calls += 1;
        if kill < KILLS {
            open.extend((0..4).map(|n| format!("call-{kill}-{n}")));
            calls += 4;
        }
        // Each is sent twice at once, as by a client that has lost patience.
        let sent = open.clone();
        let answers = join_all(sent.iter().flat_map(|name| [name, name]).map(|name| {
            let client = Arc::clone(&process.client);
            async move { (name.clone(), client.try_call(charge(name, false)).await) }
        }));
        let started = site.ledger.started();
        let moment = Duration::from_micros(random.below(8_000));
        let at_work = async {
            while site.ledger.started() == started {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(moment).await;
        };
        tokio::pin!(answers);
        let collected = tokio::select! {
            answers = &mut answers => answers,
            () = at_work, if kill < KILLS => {
                // What was answered by then is answered, the rest is lost.
                let (answers, ()) = tokio::join!(answers, process.kill());
                answers
            }
        };
        for (name, answer) in collected {
            let Ok(answer) = answer else {
                lost_answers += 1;
                continue;
            };
            assert_speaks_of_no_lock(&answer);
            if answer.is_failure() {
                assert_ne!(answer.outcome(), "committed", "seed {SEED:#x}, kill {kill}");
                continue;
            }
            open.retain(|other| *other != name);
            results.push((name, answer.unmarked()));
        }
    }
    assert!(open.is_empty(), "seed {SEED:#x}: unanswered {open:?}");
    assert!(lost_answers > 0, "seed {SEED:#x}: no kill hit a call");
    let mut effects = site.database.effects().await;
    assert_eq!(effects.len(), calls, "seed {SEED:#x}");
    effects.dedup();
    assert_eq!(effects.len(), calls, "seed {SEED:#x}: an effect twice");
    for name in &effects {
        assert!(site.ledger.runs(name) >= 1, "seed {SEED:#x}: {name}");
        let mut of_name = results.iter().filter(|(other, _)| other == name);
        let (_, first) = of_name.next().unwrap();
        assert!(
            of_name.all(|(_, result)| result == first),
            "seed {SEED:#x}: two results of {name}"
        );
    }
}

/// A handler that writes and waits at a gate.
async fn gated(database: Postgres) -> (Gate, World<Postgres>) {
    let store = database.store(4);
    gated_on(database, store).await
}

async fn gated_on(database: Postgres, store: PostgresStore) -> (Gate, World<Postgres>) {
    let gate = Gate::new();
    let world = World::on(database, store, |_| {}, {
        let gate = gate.clone();
        move |connection, call| {
            let gate = gate.clone();
            Box::pin(async move {
                effect::<Postgres>(connection, "done").await.unwrap();
                if call.earlier == 0 {
                    gate.pass().await;
                }
                text(format!("run {}", call.earlier))
            })
        }
    })
    .await;
    (gate, world)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_terminated_under_its_handler_is_not_committed() {
    let (gate, world) = gated(Postgres::create().await).await;
    let params = || call("work", json!({ "n": 1 })).with_key("k");
    let sent = world.client.send(params()).await.unwrap();
    gate.arrival().await;
    let terminated = world
        .database
        .integer(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE state = 'idle in transaction' AND datname = current_database() \
             AND pid IN (SELECT pid FROM pg_locks WHERE relation = 'effects'::regclass)",
        )
        .await;
    assert_eq!(terminated, 1);
    gate.open();
    let answer = within_patience(sent.answer()).await.unwrap();
    assert_eq!(answer.refusal(), "idempotency_not_committed");
    assert_eq!(answer.outcome(), "not_committed");
    world.assert_nothing_is_left().await;
    assert_eq!(world.client.call(params()).await.success(), "run 1");
    world.assert_effects(&["done"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_terminated_at_any_moment_have_one_effect_for_each_call() {
    let site = Site::<Postgres>::new().await;
    let name = mcp_idempotent_tests::database::unique("t");
    let process = site.start_with(&name, |_| {}).await;
    let names: Vec<String> = (0..60).map(|n| format!("call-{n}")).collect();
    let answers = join_all(
        names
            .iter()
            .map(|name| until_answered(&process, name, false)),
    );
    tokio::pin!(answers);
    let mut terminated = 0;
    let answers = loop {
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = '{name}'"
        );
        tokio::select! {
            answers = &mut answers => break answers,
            killed = site.database.integer(&kill), if terminated < 40 => terminated += killed,
        }
    };
    assert!(terminated > 0);
    for (name, answer) in names.iter().zip(answers) {
        assert_eq!(answer.result()["structuredContent"]["name"], **name);
    }
    let mut effects = site.database.effects().await;
    assert_eq!(effects.len(), 60);
    effects.dedup();
    assert_eq!(effects.len(), 60, "an effect twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_under_a_handler_leaves_nothing_and_the_retry_runs() {
    let cluster = Cluster::start();
    let (gate, world) = gated(Postgres::create_in(&cluster.url()).await).await;
    let params = || call("work", json!({ "n": 1 })).with_key("k");
    let sent = world.client.send(params()).await.unwrap();
    gate.arrival().await;
    cluster.stop_immediately();
    cluster.start_again();
    gate.open();
    let answer = within_patience(sent.answer()).await.unwrap();
    assert_eq!(answer.outcome(), "not_committed");
    world.assert_nothing_is_left().await;
    assert_eq!(world.client.call(params()).await.success(), "run 1");
    world.assert_effects(&["done"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_away_nothing_runs_and_a_commit_is_of_unknown_outcome() {
    let cluster = Cluster::start();
    let database = Postgres::create_in(&cluster.url()).await;
    let store = database
        .builder(database.pool(database.options(), 4))
        .with_acquire_timeout(Duration::from_millis(500))
        .with_recovery_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let (gate, world) = gated_on(database, store).await;
    let params = || call("work", json!({ "n": 1 })).with_key("k");
    let sent = world.client.send(params()).await.unwrap();
    gate.arrival().await;
    cluster.stop_immediately();
    gate.open();
    let answer = within_patience(sent.answer()).await.unwrap();
    assert_wire("commit_unknown", &answer);
    for (said, params) in [
        ("store_unavailable", params()),
        (
            "store_unavailable_without_a_key",
            call("work", json!({ "n": 2 })),
        ),
    ] {
        assert_wire(said, &world.client.call(params).await);
    }
    assert_eq!(world.server.runs(), 1);
    cluster.start_again();
    assert_eq!(world.client.call(params()).await.success(), "run 1");
    world.assert_effects(&["done"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_among_many_calls_has_one_effect_for_each() {
    let cluster = Cluster::start();
    let site = Site::on(Postgres::create_in(&cluster.url()).await);
    let processes = [site.start().await, site.start().await];
    let names: Vec<String> = (0..60).map(|n| format!("call-{n}")).collect();
    let calls = join_all(names.iter().flat_map(|name| {
        processes
            .iter()
            .map(move |process| until_answered(process, name, false))
    }));
    let faults = async {
        for round in 1..=2 {
            until(async || site.ledger.started() >= round * 5).await;
            tokio::task::block_in_place(|| {
                cluster.stop_immediately();
                cluster.start_again();
            });
        }
    };
    let (answers, ()) = tokio::join!(calls, faults);
    for pair in answers.chunks(2) {
        assert_eq!(pair[0].unmarked(), pair[1].unmarked());
    }
    let mut effects = site.database.effects().await;
    assert_eq!(effects.len(), 60);
    effects.dedup();
    assert_eq!(effects.len(), 60, "an effect twice");
}

on_each_store! {
    a_kill_before_the_commit_leaves_nothing_and_the_retry_runs,
    a_kill_after_the_commit_and_before_the_answer_replays,
    a_kill_in_the_middle_of_64_duplicates_leaves_one_effect,
    thirty_kills_at_any_moment_leave_one_effect_for_each_call,
}
