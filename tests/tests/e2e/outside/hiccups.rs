//! A database that is away while a handler has its lease.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{Client, Sent},
    database::{Database, Postgres},
    kit::relay::Relay,
    outside::{Place, Server, pay},
};
use mcp_idempotent_tower::RecordStatus;

use super::{Site, assert_is_in_doubt, paid};
use crate::world::{until, within_patience};

const LEASE: Duration = Duration::from_secs(3);

/// A server that reaches its database through a relay, and stands in a handler.
struct Running {
    site: Site<Postgres>,
    relay: Relay,
    client: Client,
    sent: Sent,
}

impl Running {
    async fn new(tool: &str) -> Self {
        let site = Site::<Postgres>::new().await;
        let relay = Relay::start(&site.database.options());
        let pool = site
            .database
            .pool(relay.options(site.database.options()), 4);
        let store = site.database.builder(pool).build().unwrap();
        let mut settings = site.settings();
        settings.lease = LEASE;
        settings.stop_at = Some(Place::AfterCall);
        let client = Client::of(Server::<Postgres>::on(store, &settings)).await;
        let sent = client.send(pay(tool, "a")).await.unwrap();
        until(async || site.ledger.paused("a") == 1).await;
        Self {
            site,
            relay,
            client,
            sent,
        }
    }

    /// In microseconds, by the database's clock.
    async fn lease_until(&self) -> i64 {
        self.site.record().await.lease_until.unwrap().as_micros()
    }

    /// Waits until the database's clock says so.
    async fn until_clock(&self, micros: i64) {
        until(async || self.site.database.integer(Postgres::CLOCK).await > micros).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_for_less_than_the_lease_is_survived() {
    let running = Running::new("pay_or_fail").await;
    let claimed_until = running.lease_until().await;
    running.relay.go_down();
    // The heartbeat after a third of the lease has failed by then.
    running.until_clock(claimed_until - 1_500_000).await;
    assert_eq!(running.lease_until().await, claimed_until);
    running.relay.come_up();
    running.until_clock(claimed_until).await;
    assert_eq!(running.site.status().await, RecordStatus::InProgress);

    running.site.ledger.release();
    let answer = within_patience(running.sent.answer()).await.unwrap();
    paid(&answer);
    assert!(!answer.is_replay());
    let retry = running.client.call(pay("pay_or_fail", "a")).await;
    assert!(retry.is_replay());
    assert_eq!(running.site.api.counts("a"), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_for_longer_than_the_lease_leaves_the_call_in_doubt() {
    let running = Running::new("pay_or_fail").await;
    running.relay.go_down();
    let claimed_until = running.lease_until().await;
    running.until_clock(claimed_until).await;
    running.relay.come_up();
    assert_eq!(running.site.status().await, RecordStatus::InDoubt);

    running.site.ledger.release();
    let late = within_patience(running.sent.answer()).await.unwrap();
    assert_is_in_doubt(&late);
    let retry = running.client.call(pay("pay_or_fail", "a")).await;
    assert_is_in_doubt(&retry);
    assert_eq!(running.site.ledger.runs("a"), 1);
    assert_eq!(running.site.api.counts("a"), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_cannot_be_recorded_is_given_with_a_marker_and_its_retry_is_in_doubt() {
    let running = Running::new("pay_or_fail").await;
    running.relay.go_down();
    let claimed_until = running.lease_until().await;
    let Running {
        site,
        relay,
        client,
        sent,
    } = running;
    site.ledger.release();
    let answer = within_patience(sent.answer()).await.unwrap();
    paid(&answer);
    let marker = &answer.json["result"]["_meta"]["io.github.mcp-idempotent/unrecorded"];
    assert!(marker["message"].is_string(), "{}", answer.line);

    until(async || site.database.integer(Postgres::CLOCK).await > claimed_until).await;
    relay.come_up();
    let retry = client.call(pay("pay_or_fail", "a")).await;
    assert_is_in_doubt(&retry);
    assert_eq!(site.ledger.runs("a"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_an_attempt_whose_lease_ended_with_the_database_away_is_not_written() {
    let running = Running::new("pay_and_write").await;
    running.relay.go_down();
    let claimed_until = running.lease_until().await;
    running.until_clock(claimed_until).await;
    running.relay.come_up();
    running.site.ledger.release();
    let late = within_patience(running.sent.answer()).await.unwrap();
    assert_eq!(
        late.refusal(),
        "idempotency_outcome_unknown",
        "{}",
        late.line
    );
    assert!(running.site.database.effects().await.is_empty());

    // The retry is the one that writes it.
    let retry = running.client.call(pay("pay_and_write", "a")).await;
    paid(&retry);
    assert_eq!(running.site.database.effects().await, ["a"]);
    assert_eq!(running.site.api.counts("a"), [2, 1, 1]);
}
