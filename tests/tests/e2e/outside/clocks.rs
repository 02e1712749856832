//! Times are the database's: whatever the application's clock says, and the session's zone.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mcp_idempotent_tests::{
    client::Client,
    database::{Database, Postgres},
    outside::{Server, Settings, pay},
    relay::Relay,
};
use mcp_idempotent_tower::{Audit, Policy, RecordStatus, Resolution, SweepSettings};
use sqlx::PgPool;

use super::{Site, api::Behaviour, paid};

const DAY: i64 = 24 * 60 * 60;

/// Days from 1970 to 2000, where Postgres begins to count.
const POSTGRES_EPOCH: i64 = 10_957 * DAY;

/// Everything that in these bytes looks like a moment within two days of now.
fn moments(bytes: &[u8], now: i64) -> Vec<String> {
    let near = |seconds: i64| (seconds - now).abs() < 2 * DAY;
    let is_moment = |number: i64| {
        near(number)
            || near(number / 1_000)
            || near(number / 1_000_000)
            || near(number / 1_000_000_000)
            || near(number / 1_000_000 + POSTGRES_EPOCH)
    };
    let mut found = Vec::new();
    for window in bytes.windows(8) {
        let number = i64::from_be_bytes(window.try_into().unwrap());
        if is_moment(number) {
            found.push(format!("binary {number}"));
        }
    }
    let text = String::from_utf8_lossy(bytes);
    for digits in text.split(|letter: char| !letter.is_ascii_digit()) {
        if digits.parse().is_ok_and(is_moment) {
            found.push(format!("text {digits}"));
        }
    }
    // No year is written out, in any form of a date.
    let year = 1970 + now / 31_556_952;
    for date in [format!("{year}-"), format!("{}-", year + 1)] {
        if text.contains(&date) {
            found.push(format!("a date of {date}"));
        }
    }
    found
}

fn without(mut bytes: Vec<u8>, name: &[u8]) -> Vec<u8> {
    while let Some(place) = bytes.windows(name.len()).position(|window| window == name) {
        bytes.drain(place..place + name.len());
    }
    bytes
}

/// A call, a call in doubt that is run again and completed, one that is resolved, and a sweep.
async fn whole_life(site: &Site<Postgres>, server: Server<Postgres>) {
    let client = Client::of(server.clone()).await;
    for tool in ["pay_or_rerun", "pay_or_verify", "pay_and_write"] {
        site.api.plan([Behaviour::ActsAndFails]);
        client.call(pay(tool, tool)).await.error();
        paid(&client.call(pay(tool, tool)).await);
        assert!(client.call(pay(tool, tool)).await.is_replay());
    }
    site.api.plan([Behaviour::ActsAndFails]);
    client.call(pay("pay_or_fail", "a")).await.error();
    let engine = server.idempotency().engine();
    let listed = engine.list(&Default::default()).await.unwrap();
    let doubt = listed
        .iter()
        .find(|record| record.status == RecordStatus::InDoubt);
    let doubt = doubt.unwrap();
    let audit = Audit::new("the operator", "a test").unwrap();
    engine
        .resolve(doubt.id, doubt.token, &Resolution::Release, &audit)
        .await
        .unwrap();
    paid(&client.call(pay("pay_or_fail", "a")).await);
    engine.sweep(&SweepSettings::default()).await.unwrap();
}

/// Two applications whose clocks are an hour apart cannot be told from each other, as neither says
/// what its clock shows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_clock_of_an_application_reaches_the_database() {
    let site = Site::<Postgres>::new().await;
    let relay = Relay::start(&site.database.options()).await;
    let pool = site
        .database
        .pool(relay.options(site.database.options()), 4);
    let store = site.database.builder(pool.clone()).build().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = i64::try_from(now.as_secs()).unwrap();

    relay.listen();
    whole_life(&site, Server::<Postgres>::on(store, &site.settings())).await;
    let heard = relay.heard();
    assert!(heard.len() > 5_000, "{} bytes", heard.len());
    // The test has named its schema after the time.
    let schema = site.database.schema();
    let heard = without(heard, schema.as_bytes());
    assert_eq!(moments(&heard, seconds), Vec::<String>::new());

    // Said in any of these ways, a moment would have been found.
    let micros = i64::try_from(now.as_micros()).unwrap();
    let postgres = micros - POSTGRES_EPOCH * 1_000_000;
    for moment in [micros, postgres, micros / 1_000, seconds + 3600] {
        relay.listen();
        sqlx::query("SELECT $1::bigint")
            .bind(moment)
            .execute(&pool)
            .await
            .unwrap();
        assert!(!moments(&relay.heard(), seconds).is_empty(), "{moment}");
        relay.listen();
        let literal = sqlx::AssertSqlSafe(format!("SELECT {moment}"));
        sqlx::raw_sql(literal).execute(&pool).await.unwrap();
        assert!(!moments(&relay.heard(), seconds).is_empty(), "{moment}");
    }
}

/// A time zone in which the clocks are put forward within the next hours: at an hour that is between
/// now and the end of the retention, whenever this runs. (POSIX form; an odd offset.)
async fn zone_with_a_short_night_ahead(database: &Postgres) -> String {
    let day = database
        .integer("SELECT extract(doy FROM clock_timestamp() AT TIME ZONE 'UTC')::bigint")
        .await;
    let hour = database
        .integer("SELECT extract(hour FROM clock_timestamp() AT TIME ZONE 'UTC')::bigint")
        .await;
    // Ours is 45 minutes ahead of UTC, so that a day there is as good as the same here.
    // Days are counted from 0 there.
    let (start, start_hour) = if hour < 12 {
        (day - 1, hour + 6)
    } else {
        (day % 365, hour - 12)
    };
    // Back again half a year later.
    let end = (start + 180) % 365;
    format!("<odd>-0:45<odds>-1:45,{start}/{start_hour},{end}/3")
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
    let lease = Duration::from_secs(26 * 60 * 60);
    let mut settings: Settings = site.settings();
    settings.lease = lease;
    let store = site.database.builder(pool).build().unwrap();
    let server = Server::<Postgres>::on(store, &settings);
    let client = Client::of(server.clone()).await;
    let before = site.database.integer(Postgres::CLOCK).await;

    site.api
        .plan([Behaviour::ActsAndAnswersAfter(Duration::from_millis(700))]);
    let sent = client.send(pay("pay_or_fail", name)).await.unwrap();
    crate::world::until(async || site.api.calls(name) == 1).await;
    let record = only(&server, RecordStatus::InProgress).await;
    let claimed = site.database.integer(Postgres::CLOCK).await;
    let micros = i64::try_from(lease.as_micros()).unwrap();
    let until = record.lease_until.unwrap().as_micros();
    assert!(
        (before + micros..=claimed + micros).contains(&until),
        "{name}"
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
async fn only(server: &Server<Postgres>, status: RecordStatus) -> mcp_idempotent_tower::RecordInfo {
    let mut query = mcp_idempotent_tower::RecordQuery::default();
    query.status = Some(status);
    let listed = server.idempotency().engine().list(&query).await.unwrap();
    let [record] = &*listed else {
        panic!("one record: {listed:?}");
    };
    record.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_retentions_hold_over_a_short_night_and_under_an_odd_offset() {
    let site = Site::<Postgres>::new().await;
    let zone = zone_with_a_short_night_ahead(&site.database).await;
    let short = pool_in(&site, &zone).await;
    // A day is not a day there: arithmetic in days would be an hour off.
    assert_eq!(a_day(&short).await, DAY - 3600, "{zone}");
    assert_times_hold(&site, short, "short").await;

    for zone in ["Pacific/Chatham", "Asia/Kathmandu", "UTC"] {
        let pool = pool_in(&site, zone).await;
        assert_times_hold(&site, pool, &zone.replace('/', "-")).await;
    }
}
