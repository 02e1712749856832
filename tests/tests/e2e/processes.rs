//! Several server processes on one database.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, call},
    database::{Database, Postgres, Sqlite, unique},
    ledger::{Ledger, Process, Settings, charge},
};
use serde_json::json;
use tempfile::TempDir;

use crate::world::{on_each_store, until, within_patience};

/// A database and a ledger, and servers that are started on them.
pub(crate) struct Site<D: Database> {
    pub(crate) database: D,
    pub(crate) ledger: Ledger,
    _directory: TempDir,
}

impl<D: Database> Site<D> {
    pub(crate) async fn new() -> Self {
        Self::on(D::create().await)
    }

    pub(crate) fn on(database: D) -> Self {
        let directory = TempDir::new().unwrap();
        Self {
            database,
            ledger: Ledger::new(directory.path().join("ledger")),
            _directory: directory,
        }
    }

    pub(crate) async fn start(&self) -> Process {
        self.start_with("ledger", |_| {}).await
    }

    pub(crate) async fn start_with(
        &self,
        name: &str,
        settings: impl FnOnce(&mut Settings),
    ) -> Process {
        let mut chosen = Settings::default();
        settings(&mut chosen);
        let program = env!("CARGO_BIN_EXE_ledger-server");
        Process::start(program, name, &self.database, &self.ledger, chosen).await
    }

    pub(crate) async fn until_runs(&self, name: &str, runs: usize) {
        until(async || self.ledger.runs(name) >= runs).await;
    }
}

/// What SQLite itself says to a writer that comes too late must never be an answer.
pub(crate) fn assert_speaks_of_no_lock(answer: &Answer) {
    let line = answer.line.to_lowercase();
    assert!(!line.contains("database is locked"), "{line}");
    assert!(!line.contains("database table is locked"), "{line}");
}

const DUPLICATES: usize = 64;

/// Sends 64 duplicates over both processes, and answers when the first of them runs.
async fn duplicates<D: Database>(
    site: &Site<D>,
    processes: &[Process; 2],
    name: &str,
) -> Vec<mcp_idempotent_tests::client::Sent> {
    let mut sent = Vec::new();
    for n in 0..DUPLICATES {
        let client = &processes[n % 2].client;
        sent.push(client.send(charge(name, true)).await.unwrap());
    }
    site.until_runs(name, 1).await;
    sent
}

async fn assert_one_result(sent: Vec<mcp_idempotent_tests::client::Sent>) {
    let answers = within_patience(join_all(sent.into_iter().map(|sent| sent.answer()))).await;
    let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    assert_eq!(replays, DUPLICATES - 1);
    for answer in &answers {
        assert_eq!(answer.unmarked(), answers[0].unmarked());
        assert!(answer.result()["structuredContent"].is_object());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_duplicates_over_two_processes_have_one_effect_and_harm_nobody() {
    let site = Site::<Postgres>::new().await;
    let names = [unique("p"), unique("q")];
    let processes = [
        site.start_with(&names[0], |_| {}).await,
        site.start_with(&names[1], |_| {}).await,
    ];
    let sent = duplicates(&site, &processes, "slow").await;

    // Other keys keep going, in both processes, on pools of four.
    let others = (0..24).map(|n| {
        let name = format!("other-{n}");
        let client = &processes[n % 2].client;
        async move { client.call(charge(&name, false)).await }
    });
    for answer in join_all(others).await {
        assert!(!answer.is_replay());
        answer.result();
    }
    // So do conflicts with the one that runs.
    for process in &processes {
        let other = call("charge", json!({ "name": "else", "hold": true })).with_key("slow");
        let answer = process.client.call(other).await;
        assert_eq!(answer.refusal(), "idempotency_key_conflict");
    }
    assert!(site.ledger.runs("slow") == 1);

    // With nothing else to do, a process has at most one connection in use for that key, and
    // none of them waits for a lock.
    for _ in 0..40 {
        for name in &names {
            let busy = site
                .database
                .integer(&format!(
                    "SELECT count(*) FROM pg_stat_activity \
                     WHERE application_name = '{name}' AND state <> 'idle'"
                ))
                .await;
            assert!(busy <= 1, "{busy} connections in use");
            let blocked = site
                .database
                .integer(&format!(
                    "SELECT count(*) FROM pg_stat_activity \
                     WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
                ))
                .await;
            assert_eq!(blocked, 0, "connections that wait for a lock");
        }
    }
    let holding = site
        .database
        .integer(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('{}', '{}') \
             AND state = 'idle in transaction'",
            names[0], names[1]
        ))
        .await;
    assert_eq!(holding, 1);

    site.ledger.release();
    assert_one_result(sent).await;
    assert_eq!(site.ledger.runs("slow"), 1);
    let effects = site.database.effects().await;
    assert_eq!(effects.iter().filter(|name| *name == "slow").count(), 1);
    assert_eq!(effects.len(), 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_sixty_four_duplicates_over_two_processes_have_one_effect_and_readers_go_on() {
    let site = Site::<Sqlite>::new().await;
    let processes = [site.start().await, site.start().await];
    let early = processes[0].client.call(charge("early", false)).await;
    let sent = duplicates(&site, &processes, "slow").await;

    // Replays and reads keep going beside the writer.
    for process in &processes {
        let replay = process.client.call(charge("early", false)).await;
        assert!(replay.is_replay());
        assert_eq!(replay.unmarked(), early.json);
        let conflict = call("charge", json!({ "name": "else" })).with_key("early");
        let conflict = process.client.call(conflict).await;
        assert_eq!(conflict.refusal(), "idempotency_key_conflict");
    }
    assert_eq!(site.database.effects().await, ["early"]);

    // Writers queue.
    let mut writers = Vec::new();
    for n in 0..8 {
        let client = &processes[n % 2].client;
        let name = format!("other-{n}");
        writers.push(client.send(charge(&name, false)).await.unwrap());
    }
    site.ledger.release();
    assert_one_result(sent).await;
    for sent in writers {
        let answer = within_patience(sent.answer()).await.unwrap();
        assert_speaks_of_no_lock(&answer);
        answer.result();
    }
    assert_eq!(site.ledger.runs("slow"), 1);
    assert_eq!(site.database.effects().await.len(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_writer_past_its_bound_is_told_to_retry_with_the_same_key() {
    let site = Site::<Sqlite>::new().await;
    let holder = site.start().await;
    let waiting = site
        .start_with("waiting", |settings| {
            settings.bound = Duration::from_millis(400);
        })
        .await;
    waiting.client.call(charge("early", false)).await.result();
    let slow = holder.client.send(charge("slow", true)).await.unwrap();
    site.until_runs("slow", 1).await;
    let started = Instant::now();
    // The same call, another call, and the same key for something else.
    let others = [
        charge("slow", true),
        charge("other", false),
        call("charge", json!({ "name": "else" })).with_key("slow"),
    ];
    for params in others {
        let answer = waiting.client.call(params).await;
        assert_speaks_of_no_lock(&answer);
        crate::wire::assert_wire("store_busy", &answer);
    }
    assert!(started.elapsed() < Duration::from_secs(10));
    let replay = waiting.client.call(charge("early", false)).await;
    assert!(replay.is_replay());
    site.ledger.release();
    slow.answer().await.unwrap().result();
    assert!(waiting.client.call(charge("slow", true)).await.is_replay());
    waiting.client.call(charge("other", false)).await.result();
    assert_eq!(site.database.effects().await, ["early", "other", "slow"]);
}

async fn many_keys_over_two_processes_have_one_effect_each<D: Database>() {
    let site = Site::<D>::new().await;
    let processes = [site.start().await, site.start().await];
    let calls = (0..32).flat_map(|key| (0..6).map(move |copy| (key, copy)));
    let calls = calls.map(|(key, copy): (usize, usize)| {
        let client = &processes[(key + copy) % 2].client;
        async move { (key, client.call(charge(&format!("key-{key}"), false)).await) }
    });
    let mut results = vec![None; 32];
    for (key, answer) in join_all(calls).await {
        assert_speaks_of_no_lock(&answer);
        answer.result();
        let first = results[key].get_or_insert_with(|| answer.unmarked());
        assert_eq!(*first, answer.unmarked());
    }
    assert_eq!(site.database.effects().await.len(), 32);
    let mut effects = site.database.effects().await;
    effects.dedup();
    assert_eq!(effects.len(), 32);
}

on_each_store! {
    many_keys_over_two_processes_have_one_effect_each,
}
