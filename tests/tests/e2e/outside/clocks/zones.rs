//! Sessions in zones with an odd offset, and where a night is shorter or longer than others.

use std::time::Duration;

use mcp_idempotent_tests::{
    client::Client,
    database::{Database as _, Postgres},
    outside::{Place, Server, pay},
};
use mcp_idempotent_tower::{Policy, RecordInfo, RecordQuery, RecordStatus};
use sqlx::PgPool;

use super::{DAY, Site};
use crate::{
    outside::{api::Behaviour, paid},
    world::until,
};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Between now and the same time tomorrow.
const LEASE: Duration = Duration::from_secs(26 * 60 * 60);

/// In which direction the clocks are put.
#[derive(Debug, Clone, Copy)]
enum Night {
    Short,
    Long,
}

/// A time zone in which the clocks are put forward, or back, within the next hours: at an hour that
/// is between now and the end of the retention, whenever this runs. (POSIX form; an odd offset.)
async fn zone_with(night: Night, database: &Postgres) -> String {
    let day = database
        .integer("SELECT extract(doy FROM clock_timestamp() AT TIME ZONE 'UTC')::bigint")
        .await;
    let hour = database
        .integer("SELECT extract(hour FROM clock_timestamp() AT TIME ZONE 'UTC')::bigint")
        .await;
    // Ours is 45 minutes ahead of UTC, so that a day there is as good as the same here.
    // Days are counted from 0 there.
    let (near, near_hour) = if hour < 12 {
        (day - 1, hour + 6)
    } else {
        (day % 365, hour - 12)
    };
    // The other way half a year later.
    let far = (near + 180) % 365;
    let [start, end] = [(near, near_hour), (far, 3)].map(|(day, hour)| format!("{day}/{hour}"));
    match night {
        Night::Short => format!("<odd>-0:45<odds>-1:45,{start},{end}"),
        Night::Long => format!("<odd>-0:45<odds>-1:45,{end},{start}"),
    }
}

/// A pool whose sessions have this zone.
async fn pool_in(site: &Site<Postgres>, zone: &str) -> PgPool {
    site.database
        .pool_set_up_by(4, format!("SET TIME ZONE '{zone}'"))
}

/// How long a day is from now on, in the zone of these sessions.
async fn a_day(pool: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT extract(epoch FROM now() + interval '1 day' - now())::bigint")
        .fetch_one(pool)
        .await
        .unwrap()
}

/// A lease and a retention on sessions of `pool` are as long as they were said to be.
async fn assert_times_hold(site: &Site<Postgres>, pool: PgPool, name: &str) {
    let mut settings = site.settings();
    settings.lease = LEASE;
    settings.stop_at = Some(Place::BeforeCall);
    let lease = i64::try_from(LEASE.as_micros()).unwrap();
    let store = site.database.builder(pool).build().unwrap();
    let server = Server::<Postgres>::on(store, &settings);
    let client = Client::of(server.clone()).await;
    let clock = async || site.database.integer(Postgres::CLOCK).await;
    let until_of = |record: RecordInfo| record.lease_until.unwrap().as_micros();

    let before = clock().await;
    let sent = client.send(pay("pay_or_fail", name)).await.unwrap();
    until(async || site.ledger.paused(name) == 1).await;
    let claimed = until_of(only(&server, RecordStatus::InProgress).await);
    let after = clock().await;
    assert!(
        (before + lease..=after + lease).contains(&claimed),
        "{name}: claimed until {claimed}"
    );

    // The handler renews it, as the heartbeat does, after an hour that nobody has waited for.
    site.database.age(HOUR).await;
    let before = clock().await;
    site.api
        .plan([Behaviour::ActsAndAnswersAfter(Duration::from_millis(700))]);
    site.ledger.release();
    until(async || site.api.calls(name) == 1).await;
    let renewed = until_of(only(&server, RecordStatus::InProgress).await);
    let after = clock().await;
    assert!(
        (before + lease..=after + lease).contains(&renewed),
        "{name}: renewed until {renewed}"
    );

    paid(&sent.answer().await.unwrap());
    let record = only(&server, RecordStatus::Completed).await;
    let retention = i64::try_from(Policy::DEFAULT_RETENTION.as_micros()).unwrap();
    let kept = record.expires_at.unwrap().as_micros() - record.completed_at.unwrap().as_micros();
    assert_eq!(kept, retention, "{name}");

    // In doubt, by a lapse of the lease and not before.
    site.api.plan([Behaviour::ActsAndFails]);
    let doubtful = format!("{name}-doubt");
    client.call(pay("pay_or_fail", &doubtful)).await.error();
    let record = only(&server, RecordStatus::InDoubt).await;
    let kept = record.expires_at.unwrap().as_micros() - record.completed_at.unwrap().as_micros();
    let retention = i64::try_from(Policy::DEFAULT_IN_DOUBT_RETENTION.as_micros()).unwrap();
    assert_eq!(kept, retention, "{name}");

    // Past its retention it is gone, and a moment before that it is not.
    site.database
        .age(Policy::DEFAULT_RETENTION - Duration::from_secs(60))
        .await;
    assert!(client.call(pay("pay_or_fail", name)).await.is_replay());
    site.database.age(Duration::from_secs(61)).await;
    let anew = client.call(pay("pay_or_fail", name)).await;
    paid(&anew);
    assert!(!anew.is_replay());
    site.database.execute("DELETE FROM records").await;
}

/// The only record that stands so.
async fn only(server: &Server<Postgres>, status: RecordStatus) -> RecordInfo {
    let mut query = RecordQuery::default();
    query.status = Some(status);
    let listed = server.idempotency().engine().list(&query).await.unwrap();
    let [record] = &*listed else {
        panic!("one record: {listed:?}");
    };
    record.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_retentions_hold_over_a_short_and_a_long_night() {
    for (night, shift) in [(Night::Short, -3600), (Night::Long, 3600)] {
        let site = Site::<Postgres>::new().await;
        let zone = zone_with(night, &site.database).await;
        let pool = pool_in(&site, &zone).await;
        // A day is not a day there: arithmetic in days would be an hour off.
        assert_eq!(a_day(&pool).await, DAY + shift, "{zone}");
        assert_times_hold(&site, pool, &format!("{night:?}")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_retentions_hold_under_an_odd_offset() {
    for zone in ["Pacific/Chatham", "Asia/Kathmandu", "UTC"] {
        // A ledger of its own: one that is released holds nobody.
        let site = Site::<Postgres>::new().await;
        let pool = pool_in(&site, zone).await;
        assert_times_hold(&site, pool, &zone.replace('/', "-")).await;
    }
}
