//! Servers that freeze (SIGSTOP) and wake up (SIGCONT) after their lease has expired.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{Answer, Sent},
    database::Database,
    ledger::Process,
    outside::{Place, pay},
};
use mcp_idempotent_tower::{Audit, Policy, RecordStatus, Resolution, Resolved};

use super::{SECOND, Site, assert_a_retry_finds_out, assert_is_in_doubt, paid};
use crate::world::{on_each_store, until, within_patience};

/// A server that is frozen in a handler.
struct Paused {
    process: Process,
    sent: Sent,
}

impl Paused {
    /// Calls `tool` under the key `a`, and stops its process where the handler is.
    async fn at<D: Database>(site: &Site<D>, tool: &str, place: Place) -> Self {
        let process = site
            .start_with(|settings| settings.stop_at = Some(place))
            .await;
        let sent = process.client.send(pay(tool, "a")).await.unwrap();
        until(async || site.ledger.paused("a") == 1).await;
        process.pause().await;
        Self { process, sent }
    }

    /// It goes on, and is answered late.
    async fn go_on<D: Database>(self, site: &Site<D>) -> (Process, Answer) {
        site.ledger.release();
        self.process.resume().await;
        let answer = within_patience(self.sent.answer()).await.unwrap();
        (self.process, answer)
    }
}

/// Another server runs the call anew.
async fn another_pays<D: Database>(site: &Site<D>, tool: &str) -> (Process, Answer) {
    let other = site.start().await;
    let winner = other.client.call(pay(tool, "a")).await;
    paid(&winner);
    assert!(!winner.is_replay());
    (other, winner)
}

/// The other server's answer counts, no matter who asks.
async fn assert_stands<D: Database>(
    site: &Site<D>,
    tool: &str,
    first: &Answer,
    all: [&Process; 2],
) {
    for process in all {
        let replay = process.client.call(pay(tool, "a")).await;
        assert!(replay.is_replay(), "{}", replay.line);
        assert_eq!(replay.unmarked(), first.unmarked());
    }
    assert_eq!(site.status().await, RecordStatus::Completed);
}

async fn a_paused_process_that_lost_its_lease_changes_nothing_and_its_caller_is_told<
    D: Database,
>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_rerun", Place::AfterCall).await;
    site.end_leases().await;
    let (other, winner) = another_pays(&site, "pay_or_rerun").await;
    let before = site.record().await;

    let (process, late) = paused.go_on(&site).await;
    assert_a_retry_finds_out(&late);
    let after = site.record().await;
    assert_eq!(after.token, before.token);
    assert_eq!(after.response, before.response);
    assert_stands(&site, "pay_or_rerun", &winner, [&process, &other]).await;
    assert_eq!(site.api.counts("a"), [2, 1, 1]);
}

async fn a_paused_process_whose_lease_ended_is_fenced_where_nobody_runs_again<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_fail", Place::AfterCall).await;
    site.end_leases().await;
    let other = site.start().await;
    assert_is_in_doubt(&other.client.call(pay("pay_or_fail", "a")).await);

    let (process, late) = paused.go_on(&site).await;
    assert_is_in_doubt(&late);
    assert_eq!(site.status().await, RecordStatus::InDoubt);
    assert_is_in_doubt(&process.client.call(pay("pay_or_fail", "a")).await);
    assert_eq!(site.ledger.runs("a"), 1);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

async fn a_paused_process_is_fenced_after_its_payment_was_found_by_another<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_verify", Place::AfterCall).await;
    site.end_leases().await;
    let other = site.start().await;
    let found = other.client.call(pay("pay_or_verify", "a")).await;
    paid(&found);
    assert!(found.is_replay());

    let (process, late) = paused.go_on(&site).await;
    assert_a_retry_finds_out(&late);
    assert_stands(&site, "pay_or_verify", &found, [&process, &other]).await;
    assert_eq!(site.ledger.runs("a"), 1);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

/// An operator takes it for dead, while it still has its lease.
async fn a_paused_process_is_fenced_after_its_record_was_released_and_claimed_anew<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_fail", Place::AfterCall).await;
    let record = site.record().await;
    assert_eq!(record.status, RecordStatus::InProgress);
    let audit = Audit::new("the operator", "its machine is suspended").unwrap();
    let operator = site.operator();
    let resolved = operator
        .engine()
        .resolve(record.id, record.token, &Resolution::Release, &audit)
        .await
        .unwrap();
    assert!(matches!(resolved, Resolved::Done(_)), "{resolved:?}");
    let (other, winner) = another_pays(&site, "pay_or_fail").await;

    let (process, late) = paused.go_on(&site).await;
    assert_is_in_doubt(&late);
    assert_stands(&site, "pay_or_fail", &winner, [&process, &other]).await;
    // A release says nothing of the effect, so the API is sent the key that it knows.
    assert_eq!(site.api.counts("a"), [2, 1, 1]);
}

/// The record was past its retention in doubt: nobody knows of the call any more, and the same key
/// is a new call, with a new key for the API.
async fn a_paused_process_is_fenced_after_its_record_was_swept_and_claimed_anew<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_fail", Place::AfterCall).await;
    let operator = site.operator();
    let settings = mcp_idempotent_tower::SweepSettings::default();
    site.end_leases().await;
    assert_eq!(operator.engine().sweep(&settings).await.unwrap(), 0);
    site.database
        .age(Policy::DEFAULT_IN_DOUBT_RETENTION + SECOND)
        .await;
    assert_eq!(operator.engine().sweep(&settings).await.unwrap(), 1);
    let (other, winner) = another_pays(&site, "pay_or_fail").await;

    let (process, late) = paused.go_on(&site).await;
    assert_is_in_doubt(&late);
    assert_stands(&site, "pay_or_fail", &winner, [&process, &other]).await;
    assert_eq!(site.api.counts("a"), [2, 2, 2]);
}

async fn a_paused_process_asks_for_its_lease_before_the_outside_call<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_or_rerun", Place::BeforeCall).await;
    site.end_leases().await;
    let (other, winner) = another_pays(&site, "pay_or_rerun").await;

    let (process, late) = paused.go_on(&site).await;
    assert_a_retry_finds_out(&late);
    assert_stands(&site, "pay_or_rerun", &winner, [&process, &other]).await;
    assert_eq!(site.ledger.runs("a"), 2);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

async fn a_paused_process_writes_no_row_of_its_own_after_another_has<D: Database>() {
    let site = Site::<D>::new().await;
    let paused = Paused::at(&site, "pay_and_write", Place::AfterCall).await;
    site.end_leases().await;
    let (other, winner) = another_pays(&site, "pay_and_write").await;
    assert_eq!(site.database.effects().await, ["a"]);

    let (process, late) = paused.go_on(&site).await;
    assert_a_retry_finds_out(&late);
    assert_stands(&site, "pay_and_write", &winner, [&process, &other]).await;
    assert_eq!(site.database.effects().await, ["a"]);
    assert_eq!(site.api.counts("a"), [2, 1, 1]);
}

/// As the first, with a lease that ends by itself.
async fn a_lease_ends_while_its_process_stands_still_and_not_while_it_runs<D: Database>() {
    let lease = Duration::from_millis(1200);
    let site = Site::<D>::new().await;
    let process = site
        .start_with(|settings| {
            settings.lease = lease;
            settings.stop_at = Some(Place::AfterCall);
        })
        .await;
    let sent = process.client.send(pay("pay_or_rerun", "a")).await.unwrap();
    until(async || site.ledger.paused("a") == 1).await;
    // Renewed, until it has lasted longer than it was claimed for.
    let claimed_until = site.record().await.lease_until.unwrap();
    until(async || site.record().await.lease_until.unwrap() > claimed_until).await;
    let claimed_until = claimed_until.as_micros();
    let micros = i64::try_from(lease.as_micros()).unwrap();
    until(async || site.database.integer(D::CLOCK).await > claimed_until + micros / 4).await;
    assert_eq!(site.status().await, RecordStatus::InProgress);

    process.pause().await;
    let other = site.start_with(|settings| settings.lease = lease).await;
    let winner = other.client.call(pay("pay_or_rerun", "a")).await;
    paid(&winner);
    assert!(!winner.is_replay());
    let (process, late) = Paused { process, sent }.go_on(&site).await;
    assert_a_retry_finds_out(&late);
    assert_stands(&site, "pay_or_rerun", &winner, [&process, &other]).await;
    assert_eq!(site.api.counts("a"), [2, 1, 1]);
}

on_each_store! {
    a_paused_process_that_lost_its_lease_changes_nothing_and_its_caller_is_told,
    a_paused_process_whose_lease_ended_is_fenced_where_nobody_runs_again,
    a_paused_process_is_fenced_after_its_payment_was_found_by_another,
    a_paused_process_is_fenced_after_its_record_was_released_and_claimed_anew,
    a_paused_process_is_fenced_after_its_record_was_swept_and_claimed_anew,
    a_paused_process_asks_for_its_lease_before_the_outside_call,
    a_paused_process_writes_no_row_of_its_own_after_another_has,
    a_lease_ends_while_its_process_stands_still_and_not_while_it_runs,
}
