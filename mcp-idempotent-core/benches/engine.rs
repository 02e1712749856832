//! The engine over the memory store, identity included: what is left of a call without a database.

mod call;

use std::time::Duration;

use criterion::Criterion;
use mcp_idempotent_core::{Engine, MemoryStore};
use tokio::runtime::{Builder, Runtime};

use call::{
    ARGUMENTS, conflicting_request, expect_executed, expect_refused, expect_replayed, fresh_key,
    joining, request, steady, under_lease,
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

    let mut bench = |name: &str, call: &dyn Fn()| {
        group.bench_function(name, |b| {
            b.iter_custom(|iterations| steady(iterations, call));
        });
    };
    let key = fresh_key();
    runtime.block_on(under_lease(engine, request(engine, &key, &ARGUMENTS)));
    bench("first call", &|| {
        let request = request(engine, &fresh_key(), &ARGUMENTS);
        expect_executed(runtime.block_on(under_lease(engine, request)));
    });
    bench("replay", &|| {
        let request = request(engine, &key, &ARGUMENTS);
        expect_replayed(runtime.block_on(under_lease(engine, request)));
    });
    bench("conflict", &|| {
        let request = conflicting_request(engine, &key);
        expect_refused(runtime.block_on(under_lease(engine, request)));
    });
    group.bench_function("join", |b| {
        b.iter_custom(|iterations| {
            // As many at once as are polled before the runtime wants its turn.
            let mut times: Vec<_> = (0..iterations.div_ceil(64))
                .map(|_| runtime.block_on(joining(engine, 64)))
                .collect();
            times.sort_unstable();
            times[times.len() / 2] * u32::try_from(iterations).expect("few iterations")
        });
    });
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    engine(&mut criterion);
    criterion.final_summary();
}
