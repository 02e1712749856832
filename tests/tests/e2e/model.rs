//! Many calls of every kind at once, against the rules that must hold whatever happens.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, stream};
use mcp_idempotent_tests::{
    client::{Answer, CallExt as _, Client, call},
    database::{Database, Stored, effect},
};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};

use crate::{
    processes::assert_speaks_of_no_lock,
    server::{Server, is_error, protocol_error, text},
    world::{engine, on_each_store},
};

const KEYS: u64 = 40;
const CALLS: u64 = 600;
const SEED: u64 = 0x00c0_ffee_0dd5;

/// What a call's number lets its handler do.
const ALWAYS_ERROR: i64 = 1;
const OFTEN_FAIL: i64 = 2;
const OFTEN_PANIC: i64 = 3;
const OFTEN_ABORT: i64 = 4;

fn params(key: u64, n: i64) -> CallToolRequestParams {
    let name = format!("key-{key}");
    call("work", json!({ "n": n, "name": name })).with_key(name)
}

/// The same numbers in every run.
fn numbers() -> impl Iterator<Item = u64> {
    let mut state = SEED;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

async fn clients<D: Database>(database: &D) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..3 {
        let idempotency = engine(database.store(4)).build().unwrap();
        let server = Server::<D>::new(idempotency, |connection, call| {
            Box::pin(async move {
                let effect = effect::<D>(connection, &format!("{} {}", call.name, call.n)).await;
                if effect.is_err() {
                    return protocol_error("the database failed");
                }
                let in_a_bad_mood = call.earlier.is_multiple_of(2);
                match call.n {
                    ALWAYS_ERROR => return is_error(format!("{} cannot", call.name)),
                    OFTEN_FAIL if in_a_bad_mood => return protocol_error("not now"),
                    OFTEN_PANIC if in_a_bad_mood => panic!("a bad mood"),
                    OFTEN_ABORT if in_a_bad_mood => {
                        drop(D::run(connection, "SELECT * FROM no_such_table").await);
                    }
                    _ => {}
                }
                text(format!("{} {} by {}", call.name, call.n, call.earlier))
            })
        });
        clients.push(Client::of(server).await);
    }
    clients
}

/// Whether it says for good what became of the key: a result, or a conflict with one.
fn is_settled(answer: &Answer) -> bool {
    !answer.is_failure() || answer.json.to_string().contains("idempotency_key_conflict")
}

async fn whatever_happens_each_key_has_one_result_and_at_most_one_effect<D: Database>() {
    let database = D::create().await;
    let clients = clients(&database).await;
    let mut numbers = numbers();
    let calls: Vec<(u64, i64, usize)> = (0..CALLS)
        .map(|_| {
            let [key, n, client] = std::array::from_fn(|_| numbers.next().unwrap());
            // Two kinds of calls for each key.
            let n = (key % 5 + n % 2) % 5;
            (
                key % KEYS,
                i64::try_from(n).unwrap(),
                usize::try_from(client % 3).unwrap(),
            )
        })
        .collect();
    let used: BTreeSet<(u64, i64)> = calls.iter().map(|&(key, n, _)| (key, n)).collect();
    let clients = &clients;
    let answers: Vec<(u64, i64, Answer)> = stream::iter(calls)
        .map(|(key, n, client)| async move { (key, n, clients[client].call(params(key, n)).await) })
        .buffer_unordered(64)
        .collect()
        .await;
    // What each key has come to.
    let mut last = Vec::new();
    for (key, n) in used {
        let mut tries = 0;
        let answer = loop {
            let answer = clients[0].call(params(key, n)).await;
            if is_settled(&answer) {
                break answer;
            }
            tries += 1;
            assert!(tries < 20, "seed {SEED:#x}, key {key}: {}", answer.line);
        };
        last.push((key, n, answer));
    }

    let mut results: BTreeMap<u64, (i64, Value)> = BTreeMap::new();
    for (key, n, answer) in answers.iter().chain(&last) {
        assert_speaks_of_no_lock(answer);
        if !answer.is_failure() {
            let result = (*n, answer.unmarked());
            let first = results.entry(*key).or_insert_with(|| result.clone());
            assert_eq!(*first, result, "seed {SEED:#x}: two results of key {key}");
        }
    }
    let mut effects: Vec<String> = results
        .iter()
        .filter(|(_, (n, _))| *n != ALWAYS_ERROR)
        .map(|(key, (n, _))| format!("key-{key} {n}"))
        .collect();
    effects.sort();
    assert_eq!(database.effects().await, effects, "seed {SEED:#x}");
    assert_eq!(
        database.records().await,
        vec![Stored::Completed; results.len()]
    );
    // Before, a conflict may have been with a call that ran and came to nothing.
    for (key, n, answer) in &last {
        if answer.is_failure() {
            assert_ne!(results[key].0, *n, "seed {SEED:#x}: {}", answer.line);
        }
    }
}

on_each_store! {
    whatever_happens_each_key_has_one_result_and_at_most_one_effect,
}
