//! What an application tells its database.

use std::time::{SystemTime, UNIX_EPOCH};

use mcp_idempotent_tests::{
    client::Client,
    database::Postgres,
    kit::relay::Relay,
    outside::{Server, pay},
};
use mcp_idempotent_tower::{Audit, RecordStatus, Resolution, SweepSettings};

use super::{DAY, Site};
use crate::outside::{api::Behaviour, paid};

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
    let relay = Relay::start(&site.database.options());
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
