//! Server processes whose clocks of the day are wrong: on Postgres nobody notices, and on SQLite,
//! which has no other clock, it is known what comes of it.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::{Answer, Client},
    database::{Database, Postgres, Sqlite},
    ledger::{Clock, Process, charge},
    outside::{Place, pay},
};
use mcp_idempotent_tower::{Policy, RecordStatus};

use super::Site;
use crate::{
    outside::{SECOND, assert_a_retry_finds_out, assert_is_in_doubt, paid},
    processes,
    world::{on_each_store, until, within_patience},
};

/// One acts, the other asks.
const APART: [[Clock; 2]; 2] = [
    [Clock::AnHourAhead, Clock::AnHourBehind],
    [Clock::AnHourBehind, Clock::AnHourAhead],
];

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A server that tells at once that a call is running.
async fn start<D: Database>(site: &Site<D>, clock: Clock) -> Process {
    site.start_with(|settings| {
        settings.clock = clock;
        settings.reject_running = true;
    })
    .await
}

/// A server whose handlers stop when they have paid.
async fn start_stopping<D: Database>(site: &Site<D>, clock: Clock, lease: Duration) -> Process {
    site.start_with(|settings| {
        settings.clock = clock;
        settings.lease = lease;
        settings.stop_at = Some(Place::AfterCall);
    })
    .await
}

fn assert_is_in_progress(answer: &Answer) {
    assert_eq!(
        answer.refusal(),
        "idempotency_key_in_progress",
        "{}",
        answer.line
    );
}

/// Asks again and again, until the answer is that of a time after `end`: as long as it is that of a
/// time before, the database's clock had not got there when it was asked, and afterwards it had.
async fn ends_exactly(
    database: &Postgres,
    end: i64,
    ask: impl AsyncFn() -> Answer,
    is_before: impl Fn(&Answer) -> bool,
) -> Answer {
    within_patience(async {
        loop {
            let asked = database.integer(Postgres::CLOCK).await;
            let answer = ask().await;
            let answered = database.integer(Postgres::CLOCK).await;
            if !is_before(&answer) {
                assert!(answered >= end, "{} before the end", answer.line);
                return answer;
            }
            assert!(asked < end, "{} after the end", answer.line);
        }
    })
    .await
}

/// Lets a time of all records be in a moment, and answers when.
async fn in_a_moment(database: &Postgres, column: &str) -> i64 {
    let set = format!("UPDATE records SET {column} = clock_timestamp() + interval '400 ms'");
    database.execute(&set).await;
    let read = format!("SELECT (extract(epoch FROM max({column})) * 1000000)::bigint FROM records");
    database.integer(&read).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_ends_when_the_database_says_so_for_processes_whose_clocks_are_wrong() {
    for [holder, other] in APART {
        let site = Site::<Postgres>::new().await;
        let holding = start_stopping(&site, holder, Policy::DEFAULT_LEASE).await;
        let sent = holding.client.send(pay("pay_or_fail", "a")).await.unwrap();
        until(async || site.ledger.paused("a") == 1).await;
        let other = start(&site, other).await;
        assert_is_in_progress(&other.client.call(pay("pay_or_fail", "a")).await);

        // Killed, and started anew: nobody renews it now.
        holding.kill().await;
        sent.answer().await.unwrap_err();
        let holder = start(&site, holder).await;
        for process in [&other, &holder] {
            let ask = async || process.client.call(pay("pay_or_fail", "a")).await;
            assert_is_in_progress(&ask().await);
            let end = in_a_moment(&site.database, "lease_until").await;
            let in_progress = |answer: &Answer| answer.refusal() == "idempotency_key_in_progress";
            let ended = ends_exactly(&site.database, end, ask, in_progress).await;
            assert_is_in_doubt(&ended);
            site.database
                .execute("UPDATE records SET lease_until = clock_timestamp() + interval '1 minute'")
                .await;
        }
        site.end_leases().await;
        for process in [&other, &holder] {
            assert_is_in_doubt(&process.client.call(pay("pay_or_fail", "a")).await);
        }
        assert_eq!(site.api.counts("a"), [1, 1, 1]);
    }
}

/// A result of `first` is that of both clients while it is kept, and then `second` acts anew.
async fn assert_is_kept_exactly(
    database: &Postgres,
    [first, second]: [&Client; 2],
    call: impl AsyncFn(&Client) -> Answer,
) {
    let made = call(first).await;
    assert!(!made.is_replay(), "{}", made.line);
    database.age(Policy::DEFAULT_RETENTION - 60 * SECOND).await;
    for client in [second, first] {
        let retry = call(client).await;
        assert!(retry.is_replay(), "{}", retry.line);
        assert_eq!(retry.unmarked(), made.unmarked());
    }
    let end = in_a_moment(database, "expires_at").await;
    let anew = ends_exactly(
        database,
        end,
        async || call(second).await,
        Answer::is_replay,
    )
    .await;
    anew.result();
    let retry = call(first).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), anew.unmarked());
    database.execute("DELETE FROM records").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_is_kept_as_long_as_the_database_says_for_processes_whose_clocks_are_wrong() {
    let lease = Site::<Postgres>::new().await;
    let transaction = processes::Site::<Postgres>::new().await;
    for clocks in APART {
        let [first, second] = [
            start(&lease, clocks[0]).await,
            start(&lease, clocks[1]).await,
        ];
        let name = format!("{:?}", clocks[0]);
        assert_is_kept_exactly(
            &lease.database,
            [&first.client, &second.client],
            async |client: &Client| client.call(pay("pay_or_fail", &name)).await,
        )
        .await;
        assert_eq!(lease.ledger.runs(&name), 2);
        assert_eq!(lease.api.charges(&name), 2);

        let start = async |clock| {
            transaction
                .start_with("ledger", |settings| settings.clock = clock)
                .await
        };
        let [first, second] = [start(clocks[0]).await, start(clocks[1]).await];
        assert_is_kept_exactly(
            &transaction.database,
            [&first.client, &second.client],
            async |client: &Client| client.call(charge(&name, false)).await,
        )
        .await;
        assert_eq!(transaction.ledger.runs(&name), 2);
    }
}

/// By how much the times that such a process has stored are off.
fn stored_offset<D: Database>(clock: Clock) -> i64 {
    let its_own = D::NAME == Sqlite::NAME;
    if its_own {
        clock.offset() * 1_000_000
    } else {
        0
    }
}

async fn a_process_whose_clock_is_wrong_keeps_its_lease<D: Database>() {
    let lease = Duration::from_millis(1200);
    let micros = i64::try_from(lease.as_micros()).unwrap();
    for [holder, _] in APART {
        let site = Site::<D>::new().await;
        let holding = start_stopping(&site, holder, lease).await;
        let sent = holding.client.send(pay("pay_or_fail", "a")).await.unwrap();
        until(async || site.ledger.paused("a") == 1).await;
        let until_of = async || {
            let until = site.record().await.lease_until.unwrap();
            until.as_micros() - stored_offset::<D>(holder)
        };
        let claimed = until_of().await;
        // Renewed, for as long as it was claimed for.
        until(async || {
            let renewed = until_of().await;
            let now = site.database.integer(D::CLOCK).await;
            assert!(renewed <= now + micros, "{holder:?}: {renewed} at {now}");
            assert!(renewed > now - micros / 2, "{holder:?}: {renewed} at {now}");
            now > claimed + micros / 4
        })
        .await;
        site.ledger.release();
        let answer = within_patience(sent.answer()).await.unwrap();
        paid(&answer);
        let retry = holding.client.call(pay("pay_or_fail", "a")).await;
        assert!(retry.is_replay(), "{}", retry.line);
        assert_eq!(site.api.counts("a"), [1, 1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_lease_is_in_progress_for_a_process_whose_clock_is_wrong() {
    let lease = Duration::from_millis(1200);
    let micros = i64::try_from(lease.as_micros()).unwrap();
    for [holder, other] in APART {
        let site = Site::<Postgres>::new().await;
        let other = start(&site, other).await;
        let holding = start_stopping(&site, holder, lease).await;
        let sent = holding.client.send(pay("pay_or_rerun", "a")).await.unwrap();
        until(async || site.ledger.paused("a") == 1).await;
        let claimed = site.record().await.lease_until.unwrap().as_micros();
        until(async || {
            assert_is_in_progress(&other.client.call(pay("pay_or_rerun", "a")).await);
            site.database.integer(Postgres::CLOCK).await > claimed + micros / 4
        })
        .await;
        site.ledger.release();
        let first = within_patience(sent.answer()).await.unwrap();
        paid(&first);
        let retry = other.client.call(pay("pay_or_rerun", "a")).await;
        assert!(retry.is_replay(), "{}", retry.line);
        assert_eq!(retry.unmarked(), first.unmarked());
        assert_eq!(site.api.counts("a"), [1, 1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_running_call_is_in_doubt_for_a_process_whose_clock_is_ahead() {
    let site = Site::<Sqlite>::new().await;
    let holding = start_stopping(&site, Clock::Right, Policy::DEFAULT_LEASE).await;
    let ahead = start(&site, Clock::AnHourAhead).await;
    let mut sent = Vec::new();
    for tool in ["pay_or_fail", "pay_or_rerun"] {
        sent.push(holding.client.send(pay(tool, tool)).await.unwrap());
        until(async || site.ledger.paused(tool) == 1).await;
    }

    // Refused, where that is what is done about doubt; taken over, where that is.
    assert_is_in_doubt(&ahead.client.call(pay("pay_or_fail", "pay_or_fail")).await);
    let taken = ahead.client.call(pay("pay_or_rerun", "pay_or_rerun")).await;
    paid(&taken);
    assert!(!taken.is_replay());
    assert_eq!(site.api.counts("pay_or_rerun"), [2, 1, 1]);

    // Who was overtaken is fenced, and who was not is recorded: one result each.
    site.ledger.release();
    let late = sent.pop().unwrap();
    assert_a_retry_finds_out(&within_patience(late.answer()).await.unwrap());
    let in_time = within_patience(sent.pop().unwrap().answer()).await.unwrap();
    paid(&in_time);
    for process in [&holding, &ahead] {
        for (tool, result) in [("pay_or_fail", &in_time), ("pay_or_rerun", &taken)] {
            let retry = process.client.call(pay(tool, tool)).await;
            assert!(retry.is_replay(), "{}", retry.line);
            assert_eq!(retry.unmarked(), result.unmarked());
        }
    }
    assert_eq!(site.api.counts("pay_or_fail"), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_lease_of_a_process_whose_clock_is_ahead_ends_as_much_later_for_others() {
    let site = Site::<Sqlite>::new().await;
    let ahead = start_stopping(&site, Clock::AnHourAhead, Policy::DEFAULT_LEASE).await;
    let sent = ahead.client.send(pay("pay_or_fail", "a")).await.unwrap();
    until(async || site.ledger.paused("a") == 1).await;
    ahead.kill().await;
    sent.answer().await.unwrap_err();
    let other = start(&site, Clock::Right).await;
    site.database.age(HOUR).await;
    assert_eq!(site.status().await, RecordStatus::InProgress);
    assert_is_in_progress(&other.client.call(pay("pay_or_fail", "a")).await);
    site.end_leases().await;
    assert_is_in_doubt(&other.client.call(pay("pay_or_fail", "a")).await);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_a_result_is_expired_by_the_clock_of_who_asks() {
    let site = processes::Site::<Sqlite>::new().await;
    let start = async |clock| {
        site.start_with("ledger", |settings| settings.clock = clock)
            .await
    };
    let right = start(Clock::Right).await;
    let [behind, ahead] = [
        start(Clock::AnHourBehind).await,
        start(Clock::AnHourAhead).await,
    ];
    right.client.call(charge("a", false)).await.result();
    site.database
        .age(Policy::DEFAULT_RETENTION - HOUR - 60 * SECOND)
        .await;
    for process in [&right, &behind, &ahead] {
        assert!(process.client.call(charge("a", false)).await.is_replay());
    }
    // An hour less for one, and an hour more for the other.
    site.database.age(2 * 60 * SECOND + HOUR).await;
    assert!(behind.client.call(charge("a", false)).await.is_replay());
    site.database
        .execute(&format!(
            "UPDATE mcp_idempotent_record SET expires_at = expires_at + {}",
            (2 * 60 * SECOND).as_micros()
        ))
        .await;
    assert!(right.client.call(charge("a", false)).await.is_replay());
    assert!(!ahead.client.call(charge("a", false)).await.is_replay());
    assert_eq!(site.ledger.runs("a"), 2);
    assert_eq!(site.database.effects().await, ["a", "a"]);
}

on_each_store! {
    a_process_whose_clock_is_wrong_keeps_its_lease,
}
