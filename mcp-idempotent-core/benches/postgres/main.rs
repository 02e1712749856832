//! `PostgresStore` against what a user would write without it, where the disk is what takes the
//! time, where the network is, and where neither is.
//!
//! Starts a server of its own: `tests/run --with-services -- cargo bench -p mcp-idempotent-core
//! --features postgres --bench postgres`.

#[path = "../call/mod.rs"]
mod call;
mod cluster;
mod delay;
mod duplicates;
#[path = "../../../tests/src/kit/mod.rs"]
mod kit;
#[path = "../paired/mod.rs"]
mod paired;
mod scene;

use std::{cell::Cell, sync::Arc, time::Duration};

use call::{
    ARGUMENTS, conflicting_request, expect_refused, expect_replayed, fresh_key, joining, request,
};
use cluster::Cluster;
use kit::relay::Relay;
use mcp_idempotent_core::{Engine, store::postgres::PostgresStore};
use paired::{Paired, Target, is_quick};
use scene::{Scene, crowd, first_call, write_in};
use tokio::runtime::{Builder, Runtime};

const ONE_WAY: Duration = Duration::from_micros(250);

/// The targets that differ between environments.
struct Targets {
    first_call: Target,
    lease: Target,
    saturation: Option<Target>,
}

fn main() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let cluster = cluster::start();
    runtime.block_on(cluster::set(
        &cluster,
        &[("fsync", "on"), ("commit_delay", "2000")],
    ));
    slow_disk(&runtime, &cluster);
    runtime.block_on(cluster::set(&cluster, &[("commit_delay", "0")]));
    this_disk(&runtime, &cluster);
    runtime.block_on(cluster::set(&cluster, &[("fsync", "off")]));
    loopback(&runtime, &cluster);
    network(&runtime, &cluster);
}

/// Whatever the disk of this machine is, 2 ms are added to each flush of the log, in the place
/// where a slow disk would take them: after that, all commits that wait go along with it.
fn slow_disk(runtime: &Runtime, cluster: &Cluster) {
    let title = "Postgres over the socket, fsync on, each flush 2 ms slower";
    let mut paired = Paired::new(runtime, title);
    let scene = runtime.block_on(Scene::new(cluster.over_the_socket(), "slow_disk"));
    rows(
        &mut paired,
        &scene,
        &Targets {
            first_call: Target::AtMost(1.06),
            lease: Target::AtMost(1.10),
            saturation: Some(Target::AtMost(1.10)),
        },
    );
    paired.finish();
}

fn this_disk(runtime: &Runtime, cluster: &Cluster) {
    let mut paired = Paired::new(runtime, "Postgres over the socket, fsync on");
    let scene = runtime.block_on(Scene::new(cluster.over_the_socket(), "this_disk"));
    rows(
        &mut paired,
        &scene,
        &Targets {
            first_call: Target::None,
            lease: Target::None,
            saturation: Some(Target::None),
        },
    );
    paired.finish();
}

fn loopback(runtime: &Runtime, cluster: &Cluster) {
    let mut paired = Paired::new(runtime, "Postgres over the socket, fsync off");
    let scene = runtime.block_on(Scene::new(cluster.over_the_socket(), "loopback"));
    rows(
        &mut paired,
        &scene,
        &Targets {
            first_call: Target::AtMost(1.35),
            lease: Target::None,
            saturation: Some(Target::AtMost(1.5)),
        },
    );
    growth(&mut paired, &scene, runtime, cluster);
    slow_key(&mut paired, &scene);
    paired.finish();
}

fn network(runtime: &Runtime, cluster: &Cluster) {
    let relay = Relay::start_late(&cluster.options(), ONE_WAY);
    let mut paired = Paired::new(runtime, "Postgres behind 0.25 ms one way, fsync off");
    let scene = runtime.block_on(Scene::new(relay.options(cluster.options()), "network"));
    paired.note(format!(
        "one-way delay as measured with an echo: {:?}",
        delay::measure(ONE_WAY)
    ));
    rows(
        &mut paired,
        &scene,
        &Targets {
            first_call: Target::AtMost(1.05),
            lease: Target::None,
            saturation: None,
        },
    );
    paired.note(runtime.block_on(round_trips(&scene, &relay)));
    paired.finish();
}

fn rows(paired: &mut Paired<'_>, scene: &Arc<Scene>, targets: &Targets) {
    let bare = async |calls| scene.each(calls, async || scene.bare().await).await;
    let select = async |calls| scene.each(calls, async || scene.bare_select().await).await;
    let calls = 8;

    paired.row(
        "first call, look-up in BEGIN",
        targets.first_call,
        calls,
        bare,
        async |calls| scene.each(calls, async || scene.first_call().await).await,
    );
    paired.row(
        "first call, look-up first",
        Target::None,
        calls,
        bare,
        async |calls| {
            let engine = &scene.looking_first;
            scene.each(calls, async || first_call(engine).await).await
        },
    );
    paired.row(
        "first call, lease mode (an empty handler)",
        targets.lease,
        calls,
        bare,
        async |calls| scene.each(calls, async || scene.lease_call().await).await,
    );
    if let Some(target) = targets.saturation {
        paired.row(
            "first call, 64 callers at once",
            target,
            4,
            async |calls| {
                let time = crowd(scene, 64, calls, |scene| async move { scene.bare().await });
                let time = time.await;
                scene.settle().await;
                time
            },
            async |calls| {
                let time = crowd(scene, 64, calls, |scene| async move {
                    scene.first_call().await;
                });
                let time = time.await;
                scene.settle().await;
                time
            },
        );
    }
    let key = fresh_key();
    for (name, engine, target) in [
        ("replay, look-up in BEGIN / SELECT", &scene.engine, 2.1),
        ("replay, look-up first / SELECT", &scene.looking_first, 1.0),
    ] {
        paired.row_after(
            name,
            Target::AtMost(target),
            calls,
            async || drop(write_in(engine, request(engine, &key, &ARGUMENTS)).await),
            select,
            async |calls| scene.each(calls, async || replay(engine, &key).await).await,
        );
    }
    paired.row_after(
        "conflict / SELECT",
        Target::None,
        calls,
        async || drop(write_in(&scene.engine, request(&scene.engine, &key, &ARGUMENTS)).await),
        select,
        async |calls| {
            let refused = async || {
                let request = conflicting_request(&scene.engine, &key);
                expect_refused(write_in(&scene.engine, request).await);
            };
            scene.each(calls, refused).await
        },
    );
    paired.row(
        "joining a running call / SELECT",
        Target::AtMost(0.02),
        calls,
        select,
        async |_| {
            let time = joining(&scene.engine, 64).await;
            scene.settle().await;
            time
        },
    );
}

async fn replay(engine: &Engine<PostgresStore>, key: &str) {
    expect_replayed(write_in(engine, request(engine, key, &ARGUMENTS)).await);
}

/// "Bare" is an empty table here.
fn growth(paired: &mut Paired<'_>, empty: &Arc<Scene>, runtime: &Runtime, cluster: &Cluster) {
    let records = if is_quick() { 100_000 } else { 1_000_000 };
    let full = runtime.block_on(Scene::new(cluster.over_the_socket(), "stored"));
    paired.row_after(
        &format!("first call beside {records} records / beside few"),
        Target::AtMost(1.05),
        8,
        async || full.fill("stored", records).await,
        async |calls| empty.each(calls, async || empty.first_call().await).await,
        async |calls| full.each(calls, async || full.first_call().await).await,
    );
}

fn slow_key(paired: &mut Paired<'_>, scene: &Arc<Scene>) {
    let held = Cell::new(0);
    let note = |now: usize| held.set(held.get().max(now));
    let other = Engine::new("benchmarks", PostgresStore::clone(scene.engine.store()));
    for (place, engine) in [("this", &scene.engine), ("another", &other)] {
        held.set(0);
        paired.row(
            &format!("16 callers beside 64 duplicates of a slow call in {place} process / without"),
            Target::Keeps(0.95),
            16,
            async |calls| duplicates::undisturbed(scene, calls).await,
            async |calls| duplicates::beside(scene, calls, engine, &note).await,
        );
        if held.get() > 0 {
            paired.note(format!(
                "duplicates of a slow call in {place} process: at most {} of {} connections in use \
                 before the others start, the slow call's own included",
                held.get(),
                Scene::POOL
            ));
        }
    }
}

/// Counts what each way takes, with the ping by which sqlx takes a connection back into the pool.
async fn round_trips(scene: &Arc<Scene>, relay: &Relay) -> String {
    let key = fresh_key();
    drop(write_in(&scene.engine, request(&scene.engine, &key, &ARGUMENTS)).await);
    let bare = turns(scene, relay, async || scene.bare().await).await;
    let first = turns(scene, relay, async || scene.first_call().await).await;
    let looking_first = async || first_call(&scene.looking_first).await;
    let looking_first = turns(scene, relay, looking_first).await;
    let lease = turns(scene, relay, async || scene.lease_call().await).await;
    let select = turns(scene, relay, async || scene.bare_select().await).await;
    let replayed = turns(scene, relay, async || replay(&scene.engine, &key).await).await;
    let replayed_first = async || replay(&scene.looking_first, &key).await;
    let replayed_first = turns(scene, relay, replayed_first).await;
    format!(
        "round trips of one call, counted, each with the ping by which sqlx takes the connection \
         back: bare transaction {bare}; first call {first}, looking first {looking_first}, in lease \
         mode {lease}; bare SELECT {select}; replay {replayed}, looking first {replayed_first}"
    )
}

async fn turns(scene: &Arc<Scene>, relay: &Relay, call: impl AsyncFn()) -> f64 {
    // Until everything is prepared on whatever connections there are.
    for _ in 0..2 * Scene::POOL {
        call().await;
        scene.settle().await;
    }
    let (before, calls) = (relay.turns(), 20);
    for _ in 0..calls {
        call().await;
        scene.settle().await;
    }
    let turns = u32::try_from(relay.turns() - before).expect("few turns");
    f64::from(turns) / f64::from(calls)
}
