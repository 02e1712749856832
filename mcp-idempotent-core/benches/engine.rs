//! The engine over the memory store, identity included: what is left of a call without a database.

mod call;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use mcp_idempotent_core::{Engine, MemoryStore};
use tokio::runtime::{Builder, Runtime};

use call::{
    ARGUMENTS, conflicting_request, expect_executed, expect_refused, expect_replayed, fresh_key,
    request, under_lease,
};

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn engine(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine over the memory store");
    // A first call leaves a record behind, so the time is kept short.
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    let engine = Engine::new("benchmarks", MemoryStore::new());
    let (runtime, engine) = (&runtime(), &engine);

    group.bench_function("first call", |b| {
        b.to_async(runtime).iter(|| async {
            let request = request(engine, &fresh_key(), &ARGUMENTS);
            expect_executed(under_lease(engine, request).await);
        });
    });

    let key = fresh_key();
    runtime.block_on(under_lease(engine, request(engine, &key, &ARGUMENTS)));
    group.bench_function("replay", |b| {
        b.to_async(runtime).iter(|| async {
            let request = request(engine, &key, &ARGUMENTS);
            expect_replayed(under_lease(engine, request).await);
        });
    });
    group.bench_function("conflict", |b| {
        b.to_async(runtime).iter(|| async {
            expect_refused(under_lease(engine, conflicting_request(engine, &key)).await);
        });
    });

    group.bench_function("join", |b| {
        b.to_async(runtime).iter_custom(|iterations| async move {
            let mut spent = Duration::ZERO;
            // Below the number of polls after which the runtime wants its turn.
            let at_once = 64;
            for _ in 0..iterations {
                spent += call::joining(engine, at_once).await;
            }
            spent
        });
    });
    group.finish();
}

criterion_group!(benches, engine);
criterion_main!(benches);
