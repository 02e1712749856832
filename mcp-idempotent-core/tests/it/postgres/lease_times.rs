//! The times of leases, in every time zone, and what a renewal writes.

use std::time::Duration;

use mcp_idempotent_core::{
    RecordState, Store, TransactionStore,
    store::{End, Ended, LeaseEnd},
};
use sqlx::Executor;

use super::database::{Database, begin_unclaimed, claim, lease, result};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn is_exact(database: &Database, span: &str, days: u32) {
    let sql = format!("SELECT extract(epoch FROM {span}) = {days} * 86400 FROM {{s}}.records");
    let exact: bool = sqlx::query_scalar(database.sql(&sql))
        .fetch_one(&database.outside)
        .await
        .unwrap();
    assert!(exact, "{span} is not {days} days");
}

/// One of these spans has an odd number of changes to or from daylight saving time in it.
#[tokio::test]
async fn no_zone_and_no_daylight_saving_changes_the_times_of_a_lease() {
    for zone in [
        "Asia/Kathmandu",
        "America/New_York",
        "Europe/Berlin",
        "Pacific/Chatham",
    ] {
        let database =
            Database::with_options(|options| options.options([("TimeZone", zone)])).await;
        for days in [60, 120, 180, 240] {
            database.execute("DELETE FROM {s}.records").await;
            let mut claim = claim("key", "{}");
            claim.lease = DAY * days;
            claim.in_doubt_retention = DAY * days;
            let lease = lease(&database.store, &claim).await;
            is_exact(&database, "lease_until - created_at", days).await;
            let record = database.store.look_up(&claim).await.unwrap().unwrap();
            let RecordState::InProgress { lease_remaining } = record.state else {
                panic!("expected in progress, found {record:?}");
            };
            assert!(lease_remaining <= claim.lease);
            assert!(lease_remaining > claim.lease - Duration::from_secs(60));
            is_exact(&database, "expires_at - created_at", 2 * days).await;
            let renewed = database.store.renew(&lease, DAY * days).await.unwrap();
            let LeaseEnd::Done(at) = renewed else {
                panic!("the lease is current");
            };
            let at = at.as_micros();
            let span = format!("lease_until - 'epoch' - {at} * interval '1 microsecond'");
            is_exact(&database, &span, days).await;
            database.store.abandon(&lease).await.unwrap();
            is_exact(&database, "expires_at - completed_at", days).await;
            let taken = database.store.take_over(&claim, lease.token).await.unwrap();
            let lease = taken.expect("it is in doubt");
            is_exact(&database, "expires_at - lease_until", days).await;
            database.store.release(&lease, DAY * days).await.unwrap();
            database.age(claim.id, DAY * (days - 1)).await;
            let claimed = super::database::lease(&database.store, &claim).await;
            assert_eq!(claimed.origin, lease.origin);
        }
    }
}

#[tokio::test]
async fn a_time_zone_that_the_hook_sets_changes_no_time() {
    let database = Database::with_store(|store| {
        store.with_on_begin(|connection, _| {
            Box::pin(async move {
                connection
                    .execute("SET timezone = 'Asia/Kathmandu'")
                    .await?;
                Ok(())
            })
        })
    })
    .await;
    let claim = claim("key", "{}");
    let mut completion = result("done");
    completion.retention = DAY * 200;
    for leased in [true, false] {
        database.execute("DELETE FROM {s}.records").await;
        let ended = if leased {
            let lease = lease(&database.store, &claim).await;
            let transaction = begin_unclaimed(&database, &claim, "effect").await;
            let end = End::Complete(lease, completion.clone());
            database.store.end(transaction, None, end).await
        } else {
            let transaction = database.begin(&claim).await;
            let end = End::Commit(completion.clone());
            database.store.end(transaction, Some(&claim), end).await
        };
        let Ended::AsAsked(at) = ended else {
            panic!("expected a commit, found {ended:?}");
        };
        is_exact(&database, "expires_at - completed_at", 200).await;
        let recorded: i64 =
            sqlx::query_scalar(database.sql(
                "SELECT (extract(epoch FROM completed_at) * 1000000)::bigint FROM {s}.records",
            ))
            .fetch_one(&database.outside)
            .await
            .unwrap();
        let off = (recorded - at.as_micros()).abs();
        assert!(off < 1_000_000, "{off} microseconds");
    }
}

#[tokio::test]
async fn a_renewal_and_a_completion_touch_no_index() {
    let database = Database::new().await;
    // How many updates of this transaction were not within the page alone.
    let cold = "pg_stat_get_xact_tuples_updated('{s}.records'::regclass) \
        - pg_stat_get_xact_tuples_hot_updated('{s}.records'::regclass)";
    database.witness(cold).await;
    let lease = lease(&database.store, &claim("key", "{}")).await;
    for _ in 0..3 {
        let renewed = database.store.renew(&lease, DAY).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    }
    let completed = database.store.complete(&lease, result("done")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
    assert_eq!(database.witnessed().await, ["0"; 5]);
}

/// A server session keeps inserting into its page for as long as a claim fits, and a completion is larger. Where
/// nothing kept room for it, it left the page, and made room there for the session's next claim, and so on.
#[tokio::test]
async fn completions_find_room_beside_claims_that_other_sessions_made() {
    let database = Database::new().await;
    let cold = "pg_stat_get_xact_tuples_updated('{s}.records'::regclass) \
        - pg_stat_get_xact_tuples_hot_updated('{s}.records'::regclass)";
    database.witness(cold).await;
    for call in 0..200 {
        let lease = lease(&database.store, &claim(&format!("{call}"), "{}")).await;
        let result = result(&"r".repeat(200));
        let completed = database.elsewhere.complete(&lease, result).await;
        assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
    }
    let witnessed = database.witnessed().await;
    let left_the_page = witnessed.iter().filter(|cold| *cold != "0").count();
    assert!(left_the_page <= 4, "{left_the_page} of 200");
}

#[tokio::test]
async fn a_takeover_and_a_renewal_are_as_durable_as_a_claim() {
    let database =
        Database::with_options(|options| options.options([("synchronous_commit", "off")])).await;
    database
        .witness("current_setting('synchronous_commit')")
        .await;
    let claim = claim("key", "{}");
    let first = lease(&database.store, &claim).await;
    database.store.renew(&first, DAY).await.unwrap();
    database.store.abandon(&first).await.unwrap();
    database.store.take_over(&claim, first.token).await.unwrap();
    assert_eq!(database.witnessed().await, ["on", "on", "off", "on"]);
}
