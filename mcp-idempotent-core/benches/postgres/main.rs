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
use paired::{Paired, Target, each, is_quick};
use scene::{Scene, crowd, first_call, lease_call, write_in};
use tokio::runtime::{Builder, Runtime};

const ONE_WAY: Duration = Duration::from_micros(250);

/// One after the other, in each of a round's rows.
const CALLS: u32 = 8;

/// The targets that differ between environments, all of them for the store's own connections.
struct Targets {
    first_call: Target,
    first_call_hot: Target,
    /// Of the two transactions that a call in lease mode needs.
    lease: Target,
    /// With 64 callers at once.
    crowd: Option<Target>,
}

impl Targets {
    const NONE: Self = Self {
        first_call: Target::None,
        first_call_hot: Target::None,
        lease: Target::None,
        crowd: None,
    };
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
            first_call: Target::AtMost(1.03),
            lease: Target::AtMost(1.05),
            crowd: Some(Target::AtMost(1.05)),
            ..Targets::NONE
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
            crowd: Some(Target::None),
            ..Targets::NONE
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
            first_call: Target::AtMost(1.0),
            first_call_hot: Target::AtMost(1.5),
            lease: Target::AtMost(1.5),
            crowd: Some(Target::AtMost(1.4)),
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
            first_call: Target::AtMost(0.97),
            ..Targets::NONE
        },
    );
    paired.note(runtime.block_on(round_trips(&scene, &relay)));
    paired.finish();
}

fn rows(paired: &mut Paired<'_>, scene: &Arc<Scene>, targets: &Targets) {
    first_calls(paired, scene, targets);
    if let Some(target) = targets.crowd {
        crowds(paired, scene, target);
    }
    replays(paired, scene);
    let select = async |calls| scene.each(calls, async || scene.bare_select().await).await;
    paired.row(
        "joining a running call / SELECT, pool",
        Target::AtMost(0.02),
        CALLS,
        select,
        async |_| joining(&scene.own, 64).await,
    );
}

fn first_calls(paired: &mut Paired<'_>, scene: &Arc<Scene>, targets: &Targets) {
    let bare = async |calls| scene.each(calls, async || scene.bare().await).await;
    for (name, engine, target) in [
        ("own", &scene.own, targets.first_call),
        ("pool", &scene.pooled, Target::None),
        ("pool, look-up first", &scene.looking_first, Target::None),
    ] {
        paired.row(
            &format!("first call, {name} / transaction, pool"),
            target,
            CALLS,
            bare,
            async |calls| scene.each(calls, async || first_call(engine).await).await,
        );
    }
    paired.row(
        "first call, own / transaction, hot",
        targets.first_call_hot,
        CALLS,
        async |calls| each(calls, async || scene.bare_hot().await).await,
        async |calls| each(calls, async || first_call(&scene.own).await).await,
    );
    // A lease is two transactions, whoever writes it.
    let twice = async || {
        scene.bare().await;
        scene.bare().await;
    };
    for (name, engine, target) in [
        ("own", &scene.own, targets.lease),
        ("pool", &scene.pooled, Target::None),
    ] {
        paired.row(
            &format!("lease mode (an empty handler), {name} / two transactions, pool"),
            target,
            CALLS,
            async |calls| scene.each(calls, twice).await,
            async |calls| scene.each(calls, async || lease_call(engine).await).await,
        );
    }
}

fn crowds(paired: &mut Paired<'_>, scene: &Arc<Scene>, target: Target) {
    for (name, own, target) in [("own", true, target), ("pool", false, Target::None)] {
        paired.row(
            &format!("first call, 64 callers at once, {name} / transaction, pool"),
            target,
            4,
            async |calls| {
                let time = crowd(scene, 64, calls, |scene| async move { scene.bare().await });
                let time = time.await;
                scene.settle().await;
                time
            },
            async |calls| {
                let time = crowd(scene, 64, calls, move |scene| async move {
                    first_call(if own { &scene.own } else { &scene.pooled }).await;
                });
                let time = time.await;
                scene.settle().await;
                time
            },
        );
    }
}

fn replays(paired: &mut Paired<'_>, scene: &Arc<Scene>) {
    let select = async |calls| scene.each(calls, async || scene.bare_select().await).await;
    let key = fresh_key();
    let record = async || drop(write_in(&scene.own, request(&scene.own, &key, &ARGUMENTS)).await);
    for (name, engine, target) in [
        ("own", &scene.own, Target::AtMost(0.6)),
        ("pool", &scene.pooled, Target::None),
        (
            "pool, look-up first",
            &scene.looking_first,
            Target::AtMost(0.6),
        ),
    ] {
        paired.row_after(
            &format!("replay, {name} / SELECT, pool"),
            target,
            CALLS,
            record,
            select,
            async |calls| scene.each(calls, async || replay(engine, &key).await).await,
        );
    }
    paired.row_after(
        "replay, own / SELECT, pool, each after a rest",
        Target::AtMost(0.6),
        CALLS,
        record,
        async |calls| {
            scene
                .each_rested(calls, async || scene.bare_select().await)
                .await
        },
        async |calls| {
            scene
                .each_rested(calls, async || replay(&scene.own, &key).await)
                .await
        },
    );
    paired.row_after(
        "conflict, own / SELECT, pool",
        Target::None,
        CALLS,
        record,
        select,
        async |calls| {
            let refused = async || {
                let request = conflicting_request(&scene.own, &key);
                expect_refused(write_in(&scene.own, request).await);
            };
            scene.each(calls, refused).await
        },
    );
}

async fn replay(engine: &Engine<PostgresStore>, key: &str) {
    expect_replayed(write_in(engine, request(engine, key, &ARGUMENTS)).await);
}

/// “Bare” is an empty table here.
fn growth(paired: &mut Paired<'_>, empty: &Arc<Scene>, runtime: &Runtime, cluster: &Cluster) {
    let records = if is_quick() { 100_000 } else { 1_000_000 };
    let full = runtime.block_on(Scene::new(cluster.over_the_socket(), "stored"));
    paired.row_after(
        &format!("first call beside {records} records / beside few"),
        Target::AtMost(1.05),
        8,
        async || full.fill("stored", records).await,
        async |calls| {
            empty
                .each(calls, async || first_call(&empty.own).await)
                .await
        },
        async |calls| full.each(calls, async || first_call(&full.own).await).await,
    );
}

fn slow_key(paired: &mut Paired<'_>, scene: &Arc<Scene>) {
    let held = Cell::new(0);
    let note = |now: usize| held.set(held.get().max(now));
    let other = Engine::new("benchmarks", PostgresStore::clone(scene.pooled.store()));
    for (place, engine) in [("this", &scene.pooled), ("another", &other)] {
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
                Scene::CONNECTIONS
            ));
        }
    }
}

/// Counts what each way takes, with the pings of sqlx's pool: one before a connection is lent, and
/// one when it comes back.
async fn round_trips(scene: &Arc<Scene>, relay: &Relay) -> String {
    let key = fresh_key();
    drop(write_in(&scene.own, request(&scene.own, &key, &ARGUMENTS)).await);
    let bare = turns(scene, relay, async || scene.bare().await).await;
    let hot = turns(scene, relay, async || scene.bare_hot().await).await;
    let select = turns(scene, relay, async || scene.bare_select().await).await;
    let mut counts = format!(
        "round trips of one call, counted: transaction, pool {bare}; hot {hot}; SELECT, pool {select}"
    );
    for (name, engine) in [
        ("own", &scene.own),
        ("pool", &scene.pooled),
        ("pool, look-up first", &scene.looking_first),
    ] {
        let first = turns(scene, relay, async || first_call(engine).await).await;
        let lease = turns(scene, relay, async || lease_call(engine).await).await;
        let replay = turns(scene, relay, async || replay(engine, &key).await).await;
        counts += &format!("; {name}: first call {first}, lease mode {lease}, replay {replay}");
    }
    counts
}

async fn turns(scene: &Arc<Scene>, relay: &Relay, call: impl AsyncFn()) -> f64 {
    // Until everything is prepared on whatever connections there are.
    for _ in 0..2 * Scene::CONNECTIONS {
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
