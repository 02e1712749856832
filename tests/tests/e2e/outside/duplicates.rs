//! Many duplicates at once, over two instances.

use futures_util::future::join_all;
use mcp_idempotent_tests::{
    client::{Answer, Sent},
    database::{Database, Postgres, Sqlite, unique},
    ledger::Process,
    outside::{Place, pay},
};

use super::{Site, paid};
use crate::world::{until, within_patience};

const DUPLICATES: usize = 64;

async fn duplicates<D: Database>(site: &Site<D>, processes: &[Process; 2]) -> Vec<Sent> {
    let mut sent = Vec::new();
    for n in 0..DUPLICATES {
        let client = &processes[n % 2].client;
        sent.push(client.send(pay("pay_or_fail", "a")).await.unwrap());
    }
    until(async || site.ledger.paused("a") == 1).await;
    sent
}

/// One call at the API, and its result for everybody.
async fn assert_one_call<D: Database>(site: &Site<D>, sent: Vec<Sent>) {
    site.ledger.release();
    let answers = within_patience(join_all(sent.into_iter().map(Sent::answer))).await;
    let answers: Vec<Answer> = answers.into_iter().map(Result::unwrap).collect();
    for answer in &answers {
        paid(answer);
        assert_eq!(answer.unmarked(), answers[0].unmarked());
    }
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    assert_eq!(replays, DUPLICATES - 1);
    assert_eq!(site.ledger.runs("a"), 1);
    assert_eq!(site.api.counts("a"), [1, 1, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_duplicates_over_two_processes_are_one_outside_call_and_hold_no_connection() {
    let site = Site::<Postgres>::new().await;
    let names = [unique("p"), unique("q")];
    let stop = |settings: &mut mcp_idempotent_tests::outside::Settings| {
        settings.stop_at = Some(Place::AfterCall);
    };
    let processes = [
        site.start_as(&names[0], stop).await,
        site.start_as(&names[1], stop).await,
    ];
    let sent = duplicates(&site, &processes).await;

    // The one process runs the handler, and has no connection in use for that; the other one asks
    // from time to time, on one connection at most. No lock is held or waited for.
    let count = async |what: &str| {
        let query = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('{}', '{}') AND {what}",
            names[0], names[1]
        );
        site.database.integer(&query).await
    };
    until(async || count("state <> 'idle'").await == 0).await;
    let mut idle = 0;
    for _ in 0..40 {
        let busy = count("state <> 'idle'").await;
        assert!(busy <= 1, "{busy} connections in use");
        idle += usize::from(busy == 0);
        assert_eq!(count("wait_event_type = 'Lock'").await, 0);
        let long = "xact_start < clock_timestamp() - interval '1 second'";
        assert_eq!(count(long).await, 0, "a transaction that waits");
    }
    assert!(idle > 0, "a connection was in use at every look");
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IN \
                (SELECT pid FROM pg_stat_activity WHERE application_name";
    let held = format!("{held} IN ('{}', '{}'))", names[0], names[1]);
    until(async || site.database.integer(&held).await == 0).await;
    assert_one_call(&site, sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_sqlite_sixty_four_duplicates_over_two_processes_are_one_outside_call() {
    let site = Site::<Sqlite>::new().await;
    let stop = |settings: &mut mcp_idempotent_tests::outside::Settings| {
        settings.stop_at = Some(Place::AfterCall);
    };
    let processes = [site.start_with(stop).await, site.start_with(stop).await];
    let sent = duplicates(&site, &processes).await;
    assert_one_call(&site, sent).await;
}
