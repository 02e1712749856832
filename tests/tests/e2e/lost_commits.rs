//! The connection ends at the COMMIT, or the COMMIT takes for ever.

use std::{collections::BTreeSet, time::Duration};

use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database as _, Postgres, Stored, effect},
    kit::{
        cluster::Cluster,
        relay::{Cut, Relay},
    },
    ledger::charge,
};
use rmcp::model::CallToolRequestParams;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use crate::{
    processes::Site,
    server::{is_error, text},
    wire::assert_wire,
    world::{Gate, World, run, until, within_patience},
};

/// A server that reaches its database through a relay. `n` is the size of its result; below zero
/// it is an error.
async fn through_a_relay(database: Postgres, recovery: Duration) -> (Relay, Gate, World<Postgres>) {
    let relay = Relay::start(&database.options());
    let pool = database.pool(relay.options(database.options()), 4);
    let store = database
        .builder(pool)
        .with_recovery_timeout(recovery)
        .build()
        .unwrap();
    let gate = Gate::new();
    let world = World::on(
        database,
        store,
        |_| {},
        gate.after::<Postgres, _>(run, |call| match usize::try_from(call.n) {
            Ok(size) => text("x".repeat(size)),
            Err(_) => is_error(format!("run {}", call.earlier)),
        }),
    )
    .await;
    // As a server does at start-up: a first call would ask for the secret, and wait with it.
    world.server.idempotency.verify_secret().await.unwrap();
    (relay, gate, world)
}

fn keyed(n: i64) -> CallToolRequestParams {
    call("work", json!({ "n": n })).with_key("k")
}

const LONG: Duration = Duration::from_secs(30);

/// Below and above the size up to which a result travels in the finishing statement.
const SIZES: [i64; 2] = [10, 20_000];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_answer_to_a_commit_is_lost_everybody_gets_the_recorded_result() {
    for size in SIZES {
        let (relay, gate, world) = through_a_relay(Postgres::create().await, LONG).await;
        let first = world.client.send(keyed(size)).await.unwrap();
        gate.arrival().await;
        let joined = world.client.send(keyed(size)).await.unwrap();
        until(async || world.server.idempotency.engine().waiting() == 1).await;
        relay.cut_next_commit(Cut::AfterTheServer);
        gate.open();
        let first = within_patience(first.answer()).await.unwrap();
        assert!(relay.has_cut());
        first.success();
        let joined = within_patience(joined.answer()).await.unwrap();
        assert_eq!(joined.unmarked(), first.json);
        assert_eq!(world.client.call(keyed(size)).await.unmarked(), first.json);
        assert_eq!(world.server.runs(), 1);
        world.assert_effects(&["run 0"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_commit_does_not_reach_the_server_nothing_is_committed_and_a_waiter_runs() {
    for size in SIZES {
        let (relay, gate, world) = through_a_relay(Postgres::create().await, LONG).await;
        let first = world.client.send(keyed(size)).await.unwrap();
        gate.arrival().await;
        let waiter = world.client.send(keyed(size)).await.unwrap();
        until(async || world.server.idempotency.engine().waiting() == 1).await;
        relay.cut_next_commit(Cut::BeforeTheServer);
        gate.open();
        let first = within_patience(first.answer()).await.unwrap();
        assert!(relay.has_cut());
        assert_wire("commit_did_not_arrive", &first);
        gate.arrival().await;
        world.assert_nothing_is_left().await;
        gate.open();
        let waiter = within_patience(waiter.answer()).await.unwrap();
        waiter.success();
        assert!(!waiter.is_replay());
        world.assert_effects(&["run 1"]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_commit_happens_only_if_the_commit_did() {
    for (cut, happened) in [(Cut::AfterTheServer, 1), (Cut::BeforeTheServer, 0)] {
        let (relay, gate, world) = through_a_relay(Postgres::create().await, LONG).await;
        gate.open();
        relay.cut_next_commit(cut);
        let first = world.client.call(keyed(1)).await;
        assert!(relay.has_cut());
        assert_eq!(first.is_failure(), happened == 0, "{}", first.line);
        // The next call's comes after the first one's.
        gate.open();
        let next = call("work", json!({ "n": 2 })).with_key("next");
        world.client.call(next).await.success();
        until(async || world.server.commits() > happened).await;
        assert_eq!(world.server.commits(), happened + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_result_whose_record_was_lost_is_given_to_its_caller_all_the_same() {
    for (cut, records) in [
        (Cut::AfterTheServer, vec![Stored::Completed]),
        (Cut::BeforeTheServer, vec![]),
    ] {
        let (relay, gate, world) = through_a_relay(Postgres::create().await, LONG).await;
        gate.open();
        relay.cut_next_commit(cut);
        let first = world.client.call(keyed(-1)).await;
        assert!(relay.has_cut());
        assert_eq!(first.text(), "run 0");
        assert_eq!(first.result()["isError"], true);
        world.assert_records(&records).await;
        world.assert_effects(&[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_died_in_the_pool_fail_neither_calls_nor_replays() {
    let (relay, gate, world) = through_a_relay(Postgres::create().await, LONG).await;
    for round in 0..3 {
        let params = |n: i64| call("work", json!({ "n": n })).with_key(format!("{round}-{n}"));
        let mut sent = Vec::new();
        for n in 0..4 {
            sent.push(world.client.send(params(n)).await.unwrap());
        }
        for _ in 0..4 {
            gate.arrival().await;
        }
        // Four connections are open now; each of them dies in the pool.
        for _ in 0..4 {
            gate.open();
        }
        for sent in sent {
            sent.answer().await.unwrap().success();
        }
        relay.cut_clients();
        for n in 0..4 {
            assert!(world.client.call(params(n)).await.is_replay());
        }
        relay.cut_clients();
        gate.open();
        let new = world.client.call(params(9)).await;
        new.success();
        gate.arrival().await;
        relay.cut_clients();
    }
    assert_eq!(world.database.effects().await.len(), 15);
}

/// A server of this test's own whose commits wait for a standby that does not exist.
struct NoStandby {
    cluster: Cluster,
    control: Postgres,
}

impl NoStandby {
    async fn new() -> Self {
        let cluster = Cluster::start();
        let control = Postgres::create_in(&cluster.url()).await;
        Self { cluster, control }
    }

    async fn database(&self) -> Postgres {
        Postgres::create_in(&self.cluster.url()).await
    }

    async fn set(&self, standby: &str) {
        self.control
            .execute(&format!(
                "ALTER SYSTEM SET synchronous_standby_names = '{standby}'"
            ))
            .await;
        self.control.execute("SELECT pg_reload_conf()").await;
        let seen = format!(
            "SELECT (current_setting('synchronous_standby_names') = '{standby}')::int::bigint"
        );
        until(async || self.control.integer(&seen).await == 1).await;
    }

    /// Commits wait from now on. The setting takes effect with the checkpointer, some time after
    /// sessions see it: so one commit of our own has to be seen waiting.
    async fn miss(&self) {
        self.set("nobody").await;
        let mut probe = PgConnection::connect_with(&self.control.options())
            .await
            .unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut probe)
            .await
            .unwrap();
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = {pid}"
        );
        loop {
            let commit = effect::<Postgres>(&mut probe, "probe");
            let waiting = until(async || self.control.integer(&waits).await == 1);
            tokio::select! {
                committed = commit => committed.unwrap(),
                () = waiting => break,
            }
        }
        let terminate = format!("SELECT pg_terminate_backend({pid})::int::bigint");
        self.control.integer(&terminate).await;
        until(async || self.control.integer(&waits).await == 0).await;
    }

    async fn release(&self) {
        self.set("").await;
    }

    async fn until_a_commit_waits(&self) {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' \
                       AND backend_type = 'client backend'";
        until(async || self.control.integer(waiting).await == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_killed_while_its_commit_waits_for_a_standby_is_never_called_not_committed() {
    let standby = NoStandby::new().await;
    let site = Site::on(standby.database().await);
    let (first, second) = (site.start().await, site.start_with("second", |_| {}).await);
    first.client.call(charge("warm", false)).await.result();
    second.client.call(charge("warm", false)).await.result();
    standby.miss().await;
    let sent = first.client.send(charge("a", false)).await.unwrap();
    standby.until_a_commit_waits().await;
    first.kill().await;
    sent.answer().await.unwrap_err();

    // Not visible yet, and not free either: the retry waits, and runs nothing.
    let retry = second.client.send(charge("a", false)).await.unwrap();
    until(async || {
        let asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'second' \
                     AND query_start > (SELECT max(state_change) FROM pg_stat_activity \
                     WHERE wait_event = 'SyncRep')";
        standby.control.integer(asked).await >= 1
    })
    .await;
    assert_eq!(site.database.effects().await, ["warm"]);
    assert_eq!(site.ledger.runs("a"), 1);
    standby.release().await;
    let retry = within_patience(retry.answer()).await.unwrap();
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(site.ledger.runs("a"), 1);
    assert_eq!(site.database.effects().await, ["a", "warm"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_lost_while_its_commit_waits_for_a_standby_is_of_unknown_outcome() {
    let standby = NoStandby::new().await;
    let recovery = Duration::from_millis(500);
    let (relay, gate, world) = through_a_relay(standby.database().await, recovery).await;
    standby.miss().await;
    gate.open();
    let first = world.client.send(keyed(10)).await.unwrap();
    standby.until_a_commit_waits().await;
    relay.cut_clients();
    let first = within_patience(first.answer()).await.unwrap();
    assert_wire("commit_unknown", &first);
    world.assert_effects(&[]).await;
    let meanwhile = call("impatient_work", json!({ "n": 10 })).with_key("k");
    let meanwhile = world.client.call(meanwhile).await;
    assert_eq!(
        meanwhile.refusal(),
        "idempotency_key_conflict",
        "another tool"
    );
    standby.release().await;
    let retry = world.client.call(keyed(10)).await;
    assert!(retry.is_replay());
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["run 0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_commit_that_waits_for_a_standby_is_answered_once_it_is_visible() {
    let standby = NoStandby::new().await;
    let (relay, gate, world) = through_a_relay(standby.database().await, LONG).await;
    standby.miss().await;
    gate.open();
    let first = world.client.send(keyed(10)).await.unwrap();
    standby.until_a_commit_waits().await;
    relay.cut_clients();
    // It is searched for what became of it, again and again: it is not called lost too early.
    let latest = "SELECT coalesce(max((extract(epoch FROM query_start) * 1000000)::bigint), 0) \
                  FROM pg_stat_activity WHERE backend_type = 'client backend' \
                  AND query LIKE '%pg_is_in_recovery%' AND pid <> pg_backend_pid()";
    let mut searches = BTreeSet::new();
    within_patience(async {
        while searches.len() < 5 {
            searches.insert(standby.control.integer(latest).await);
        }
    })
    .await;
    standby.release().await;
    let first = within_patience(first.answer()).await.unwrap();
    assert_eq!(first.success(), "x".repeat(10));
    assert_eq!(world.client.call(keyed(10)).await.unmarked(), first.json);
    assert_eq!(world.server.runs(), 1);
    world.assert_effects(&["run 0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_terminated_while_its_commit_waits_for_a_standby_has_committed() {
    let standby = NoStandby::new().await;
    let (_relay, gate, world) = through_a_relay(standby.database().await, LONG).await;
    standby.miss().await;
    gate.open();
    let first = world.client.send(keyed(10)).await.unwrap();
    standby.until_a_commit_waits().await;
    let terminate = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                     WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'";
    assert_eq!(standby.control.integer(terminate).await, 1);
    let first = within_patience(first.answer()).await.unwrap();
    assert_eq!(first.success(), "x".repeat(10));
    standby.release().await;
    assert_eq!(world.client.call(keyed(10)).await.unmarked(), first.json);
    world.assert_effects(&["run 0"]).await;
}
