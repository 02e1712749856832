//! What a duplicate that waits for a running call takes of memory, each in a task of its own: the
//! growth of the process over ten thousand of them, Linux only.

mod call;

use std::{fs, mem::size_of_val};

use call::{ARGUMENTS, fresh_key, request};
use mcp_idempotent_core::{Begun, Engine, MemoryStore};
use tokio::runtime::Builder;

const WAITING: usize = 10_000;

#[expect(clippy::print_stdout, reason = "the number is what it is for")]
fn main() {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let (task, first, second) = runtime.block_on(async {
        let engine = Engine::builder("benchmarks", MemoryStore::new())
            .with_waiter_limits(usize::MAX, usize::MAX)
            .build();
        let key = fresh_key();
        let first = engine.begin_lease(request(&engine, &key, &ARGUMENTS)).await;
        assert!(matches!(first, Begun::Attempt(_)), "{first:?}");
        let before = resident();
        let task = wait(&engine, &key, WAITING).await;
        let between = resident();
        wait(&engine, &key, 2 * WAITING).await;
        let after = resident();
        (task, between - before, after - between)
    });
    println!("\nA waiting duplicate in a task of its own (target: at most 2048 bytes)\n");
    println!("- its future: {task} bytes");
    for (which, bytes) in [("first", first), ("second", second)] {
        println!(
            "- growth of the process over the {which} {WAITING}: {} bytes each",
            bytes / WAITING
        );
    }
}

/// Starts waiting calls until there are `count`; gives the size of one's future.
async fn wait(engine: &Engine<MemoryStore>, key: &str, count: usize) -> usize {
    let mut size = 0;
    for _ in engine.waiting()..count {
        let future = {
            let (engine, key) = (engine.clone(), key.to_owned());
            async move {
                let request = request(&engine, &key, &ARGUMENTS);
                drop(key);
                drop(engine.begin_lease(request).await);
            }
        };
        size = size_of_val(&future);
        drop(tokio::spawn(future));
    }
    while engine.waiting() < count {
        tokio::task::yield_now().await;
    }
    size
}

/// The process's resident memory in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status")
        .expect("the size of this process is read from /proc, which only Linux has");
    let kilobytes: usize = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|number| number.trim().parse().ok())
        .expect("a line `VmRSS: … kB`");
    kilobytes * 1024
}
