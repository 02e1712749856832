//! Servers that are killed around the outside call.

use mcp_idempotent_tests::{
    database::Database,
    ledger::Process,
    outside::{Place, pay},
};
use mcp_idempotent_tower::RecordStatus;

use super::{
    SECOND, Site,
    api::{Behaviour, NEVER},
    assert_a_retry_finds_out, assert_is_in_doubt, paid,
};
use crate::world::{on_each_store, until};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    During,
    After,
}

impl Moment {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Before, "before"),
        (Self::During, "during"),
        (Self::After, "after"),
    ];

    /// How many requests the API has had by then.
    const fn calls(self) -> usize {
        match self {
            Self::Before => 0,
            Self::During | Self::After => 1,
        }
    }
}

/// Calls `tool`, and kills its server at that moment.
async fn kill<D: Database>(site: &Site<D>, tool: &str, name: &str, moment: Moment) {
    let process = site
        .start_with(|settings| {
            settings.stop_at = match moment {
                Moment::Before => Some(Place::BeforeCall),
                Moment::During => None,
                Moment::After => Some(Place::AfterCall),
            };
        })
        .await;
    if moment == Moment::During {
        site.api.plan([Behaviour::ActsAndAnswersAfter(NEVER)]);
    }
    let sent = process.client.send(pay(tool, name)).await.unwrap();
    if moment == Moment::During {
        until(async || site.api.calls(name) == 1).await;
    } else {
        until(async || site.ledger.paused(name) == 1).await;
    }
    process.kill().await;
    sent.answer().await.unwrap_err();
    assert_eq!(site.api.calls(name), moment.calls());
    assert_eq!(site.ledger.runs(name), 1);
}

async fn under_fail_a_kill_around_the_outside_call_is_never_followed_by_a_second_one<
    D: Database,
>() {
    let site = Site::<D>::new().await;
    for (moment, name) in Moment::ALL {
        kill(&site, "pay_or_fail", name, moment).await;
    }
    site.end_leases().await;
    let restarted = site.start().await;
    for (moment, name) in Moment::ALL {
        for _ in 0..2 {
            let retry = restarted.client.call(pay("pay_or_fail", name)).await;
            assert_is_in_doubt(&retry);
        }
        assert_eq!(site.ledger.runs(name), 1);
        assert_eq!(site.api.calls(name), moment.calls());
        assert_eq!(site.api.charges(name), moment.calls());
    }
}

/// Retries until there is a result, and answers its payment.
async fn retried<D: Database>(site: &Site<D>, process: &Process, tool: &str, name: &str) -> String {
    let retry = process.client.call(pay(tool, name)).await;
    let payment = paid(&retry).to_owned();
    let again = process.client.call(pay(tool, name)).await;
    assert!(again.is_replay(), "{}", again.line);
    assert_eq!(again.unmarked(), retry.unmarked());
    assert_eq!(site.api.charges(name), 1);
    payment
}

async fn under_rerun_a_kill_around_the_outside_call_shows_the_api_one_key_and_it_acts_once<
    D: Database,
>() {
    let site = Site::<D>::new().await;
    for (moment, name) in Moment::ALL {
        kill(&site, "pay_or_rerun", name, moment).await;
    }
    site.end_leases().await;
    let restarted = site.start().await;
    for (moment, name) in Moment::ALL {
        retried(&site, &restarted, "pay_or_rerun", name).await;
        assert_eq!(site.ledger.runs(name), 2);
        assert_eq!(site.api.counts(name), [moment.calls() + 1, 1, 1]);
    }
    // Nor does the key say anything of the client's.
    for (_, name) in Moment::ALL {
        assert!(!site.api.has_received_anything_like(name));
    }
}

async fn under_verify_a_kill_around_the_outside_call_is_answered_as_found_out<D: Database>() {
    let site = Site::<D>::new().await;
    for (moment, name) in Moment::ALL {
        kill(&site, "pay_or_verify", name, moment).await;
    }
    site.end_leases().await;
    let restarted = site.start().await;

    // Nothing can be found out yet, and nothing is run.
    site.api.know_nothing(true);
    for (moment, name) in Moment::ALL {
        let retry = restarted.client.call(pay("pay_or_verify", name)).await;
        assert_a_retry_finds_out(&retry);
        assert_eq!(site.ledger.runs(name), 1);
        assert_eq!(site.api.calls(name), moment.calls());
    }

    site.api.know_nothing(false);
    for (moment, name) in Moment::ALL {
        let retry = restarted.client.call(pay("pay_or_verify", name)).await;
        paid(&retry);
        // If it was not paid, it runs. If it was, the result is the dead attempt's.
        assert_eq!(retry.is_replay(), moment != Moment::Before);
        let again = restarted.client.call(pay("pay_or_verify", name)).await;
        assert!(again.is_replay());
        assert_eq!(again.unmarked(), retry.unmarked());
        assert_eq!(site.api.counts(name), [1, 1, 1]);
        let runs = if moment == Moment::Before { 2 } else { 1 };
        assert_eq!(site.ledger.runs(name), runs);
    }
}

async fn a_kill_between_an_outside_call_and_its_row_leaves_one_charge_and_one_row<D: Database>() {
    let site = Site::<D>::new().await;
    for (moment, name) in Moment::ALL {
        kill(&site, "pay_and_write", name, moment).await;
    }
    assert!(site.database.effects().await.is_empty());
    site.end_leases().await;
    let restarted = site.start().await;
    for (moment, name) in Moment::ALL {
        retried(&site, &restarted, "pay_and_write", name).await;
        assert_eq!(site.api.counts(name), [moment.calls() + 1, 1, 1]);
    }
    let mut rows = site.database.effects().await;
    rows.sort();
    assert_eq!(rows, ["after", "before", "during"]);
}

async fn after_a_kill_a_retry_waits_for_the_lease_to_end_and_runs_then<D: Database>() {
    let site = Site::<D>::new().await;
    let short = |settings: &mut mcp_idempotent_tests::outside::Settings| {
        settings.lease = SECOND;
        settings.stop_at = Some(Place::AfterCall);
    };
    let first = site.start_with(short).await;
    let sent = first.client.send(pay("pay_or_rerun", "a")).await.unwrap();
    until(async || site.ledger.paused("a") == 1).await;
    first.kill().await;
    sent.answer().await.unwrap_err();

    let second = site.start_with(|settings| settings.lease = SECOND).await;
    let retry = second.client.call(pay("pay_or_rerun", "a")).await;
    paid(&retry);
    assert!(!retry.is_replay());
    assert_eq!(site.api.counts("a"), [2, 1, 1]);
    let record = site.record().await;
    assert_eq!(record.status, RecordStatus::Completed);
    assert_eq!(record.attempts, 2);
}

on_each_store! {
    under_fail_a_kill_around_the_outside_call_is_never_followed_by_a_second_one,
    under_rerun_a_kill_around_the_outside_call_shows_the_api_one_key_and_it_acts_once,
    under_verify_a_kill_around_the_outside_call_is_answered_as_found_out,
    a_kill_between_an_outside_call_and_its_row_leaves_one_charge_and_one_row,
    after_a_kill_a_retry_waits_for_the_lease_to_end_and_runs_then,
}
