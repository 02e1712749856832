//! First calls and replays of the engine over its memory store, beside those of the crate `idempotent` over
//! its own, in one run: on a runtime of one thread, and on one of two workers with two callers.
//!
//! Both sides make a key, compare the same five arguments by a fingerprint, and keep a result of 200 bytes.
//! Ours also makes canonical arguments and hashes by SHA-256; the other one hashes the bytes by xxHash3.

#[path = "../../../mcp-idempotent-core/benches/call/mod.rs"]
mod call;

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use idempotent::{
    CachedResponse, ExecutionOutcome, IdempotencyKey, IdempotencyStore as _, Metadata,
    memory::MemoryStore as TheirStore,
};
use mcp_idempotent_core::{Engine, MemoryStore};
use tokio::runtime::{Builder, Runtime};

use call::{ARGUMENTS, expect_executed, expect_replayed, fresh_key, request, under_lease};

const ROUNDS: usize = 60;
const CALLS: u32 = 500;

/// What their callers hash: a request's body as it came.
static BODY: LazyLock<Vec<u8>> =
    LazyLock::new(|| serde_json::to_vec(&*ARGUMENTS).expect("plain JSON"));

async fn ours(engine: &Engine<MemoryStore>, key: &str, is_replay: bool) {
    let answer = under_lease(engine, request(engine, key, &ARGUMENTS)).await;
    if is_replay {
        expect_replayed(answer);
    } else {
        expect_executed(answer);
    }
}

async fn theirs(store: &TheirStore, key: &str, is_replay: bool) {
    let key = IdempotencyKey::new(key).expect("a valid key");
    let outcome = store
        .claim(&key, Duration::from_secs(30))
        .fingerprint("transfer", &BODY)
        .execute_or_replay(Duration::from_secs(24 * 60 * 60), |_token| async {
            let body = vec![b'r'; 200].into();
            Ok(CachedResponse::new(200, Metadata::new(), body))
        })
        .await
        .expect("the store is in memory");
    let fits = match outcome {
        ExecutionOutcome::Executed(_) => !is_replay,
        ExecutionOutcome::Replayed(_) => is_replay,
        _ => false,
    };
    assert!(fits, "another outcome");
}

/// The median time of a call. `callers` make theirs at the same time.
fn median(rounds: &mut [Duration]) -> f64 {
    rounds.sort_unstable();
    rounds[rounds.len() / 2].as_secs_f64() * 1e6 / f64::from(CALLS)
}

/// One round: each caller makes its calls, one after the other, in a task of its own.
fn round<F>(runtime: &Runtime, callers: u32, call: impl Fn() -> F) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async {
        let start = Instant::now();
        let tasks: Vec<_> = (0..callers).map(|_| tokio::spawn(call())).collect();
        for task in tasks {
            task.await.expect("no panic");
        }
        start.elapsed()
    })
}

fn compare(threads: usize) {
    let runtime = if threads == 1 {
        Builder::new_current_thread().enable_all().build()
    } else {
        Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
    }
    .expect("a runtime");
    let _entered = runtime.enter();
    let callers = u32::try_from(threads).expect("few threads");
    let engine = Arc::new(Engine::new("benchmarks", MemoryStore::new()));
    let store = Arc::new(
        TheirStore::builder()
            .try_build()
            .expect("a store in memory"),
    );
    let known = fresh_key();
    runtime.block_on(async {
        ours(&engine, &known, false).await;
        theirs(&store, &known, false).await;
    });
    for is_replay in [false, true] {
        let key = move |known: &str| {
            if is_replay {
                known.to_owned()
            } else {
                fresh_key()
            }
        };
        let our_round = || {
            round(&runtime, callers, || {
                let (engine, known) = (Arc::clone(&engine), known.clone());
                async move {
                    for _ in 0..CALLS {
                        ours(&engine, &key(&known), is_replay).await;
                    }
                }
            })
        };
        let their_round = || {
            round(&runtime, callers, || {
                let (store, known) = (Arc::clone(&store), known.clone());
                async move {
                    for _ in 0..CALLS {
                        theirs(&store, &key(&known), is_replay).await;
                    }
                }
            })
        };
        let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            our_times.push(our_round());
            their_times.push(their_round());
        }
        let what = if is_replay { "replay" } else { "first call" };
        println!(
            "| {what}, {threads} | {:.2} µs | {:.2} µs |",
            median(&mut our_times),
            median(&mut their_times)
        );
    }
}

fn main() {
    println!("| call, threads | ours | `idempotent` |\n| --- | --- | --- |");
    compare(1);
    compare(2);
}
