//! `doctor`: it finds what is wrong, and only that.

use mcp_idempotent_tests::kit::{
    cluster::Cluster,
    pooler::{PoolMode, Pooler},
};
use mcp_idempotent_tower::{PostgresStore, SqliteStore};
use sqlx::{AssertSqlSafe, ConnectOptions as _, postgres::PgConnectOptions};

use super::{
    Billing, KEY,
    place::{Did, Place},
};

/// The verdict and the whole line about one thing.
fn about<'d>(did: &'d Did, what: &str) -> (&'d str, &'d str) {
    let line = did.out.lines().find(|line| line.contains(what));
    let line = line.unwrap_or_else(|| panic!("nothing about {what}: {did:?}"));
    (line.split_whitespace().next().expect("a verdict"), line)
}

#[tokio::test]
async fn a_good_store_has_nothing_wrong() {
    let (sqlite, _store) = Place::sqlite().await;
    let (postgres, _store) = Place::postgres().await;
    let (redis, _store) = Place::redis();
    for place in [&sqlite, &postgres, &redis] {
        let did = place.run(&["doctor"]);
        assert_eq!(did.code, 0, "{did:?}");
        assert_eq!(about(&did, "a call").0, "ok");
        let listed = place.json(&["records", "ls"]);
        assert_eq!(
            listed.as_array().unwrap().len(),
            0,
            "it leaves nothing behind"
        );
    }
    let did = postgres.run(&["doctor"]);
    for what in ["primary key", "advisory locks", "pooler", "clock", "sweep"] {
        assert_eq!(about(&did, what).0, "ok", "{did:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_named_by_every_command() {
    let (place, store) = Place::sqlite().await;
    drop(store);
    place.remove();
    for command in [&["doctor"][..], &["records", "ls"]] {
        let did = place.run(command);
        assert_eq!(did.code, 1, "{did:?}");
        assert!(did.err.contains("there is no file /"), "{did:?}");
        assert!(did.err.contains("`mcp-idempotent migrate`"), "{did:?}");
    }
    assert_eq!(place.run(&["migrate"]).code, 0);
    assert_eq!(place.run(&["doctor"]).code, 0);
}

#[tokio::test]
async fn a_postgres_without_its_primary_key_is_wrong() {
    let (place, _store) = Place::postgres().await;
    let drop = format!(
        "ALTER TABLE {}.records DROP CONSTRAINT mcp_idempotent_records_pkey",
        place.schema()
    );
    sqlx::query(AssertSqlSafe(drop))
        .execute(&place.pool().await)
        .await
        .unwrap();
    let did = place.run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    assert_eq!(about(&did, "primary key").0, "wrong");
    assert!(did.out.contains("ADD PRIMARY KEY"), "{did:?}");
}

#[tokio::test]
async fn sessions_that_may_not_write_or_commit_asynchronously_are_noticed() {
    let (mut place, _store) = Place::postgres().await;
    let url = place.store[1].clone();
    place.store[1] = format!("{url}?options=-c%20synchronous_commit%3Doff");
    let did = place.run(&["doctor"]);
    assert_eq!(about(&did, "durability").0, "warning", "{did:?}");
    place.store[1] = format!("{url}?options=-c%20default_transaction_read_only%3Don");
    let did = place.run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    assert_eq!(about(&did, "primary ").0, "wrong");
}

#[tokio::test]
async fn a_redis_that_evicts_or_forgets_is_noticed() {
    let (place, _store) = Place::redis_with(&["maxmemory-policy", "allkeys-lru"]);
    let did = place.run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    assert!(did.out.contains("noeviction"), "{did:?}");
    let (place, _store) = Place::redis_with(&["appendonly", "no"]);
    let did = place.run(&["doctor"]);
    assert_eq!(
        (did.code, about(&did, "durability").0),
        (0, "warning"),
        "{did:?}"
    );
}

#[tokio::test]
async fn several_at_once_find_nothing_wrong_with_each_other() {
    let (sqlite, _store) = Place::sqlite().await;
    let (postgres, _store) = Place::postgres().await;
    let (redis, _store) = Place::redis();
    for place in [&sqlite, &postgres, &redis] {
        std::thread::scope(|scope| {
            let running = Vec::from_iter((0..12).map(|_| scope.spawn(|| place.run(&["doctor"]))));
            for one in running {
                let did = one.join().unwrap();
                assert_eq!(did.code, 0, "{did:?}");
            }
        });
    }
}

#[tokio::test]
async fn a_file_without_tables_is_wrong() {
    let place = Place::empty_sqlite();
    let store = SqliteStore::open(&place.store[1]).await.unwrap();
    store.close().await;
    place.execute("DROP TABLE mcp_idempotent_store").await;
    let did = place.run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    assert_eq!(about(&did, "tables").0, "wrong");
}

#[tokio::test]
async fn calls_in_doubt_and_records_that_nobody_sweeps_are_noticed() {
    let (place, store) = Place::sqlite().await;
    let billing = Billing::new(store);
    billing.leave_in_doubt(KEY).await;
    let did = place.run(&["doctor"]);
    assert_eq!(
        (did.code, about(&did, "calls in doubt").0),
        (0, "warning"),
        "{did:?}"
    );
    place
        .execute("UPDATE mcp_idempotent_record SET expires_at = 1, purge_at = 1, sweep_at = 1")
        .await;
    let did = place.run(&["doctor"]);
    assert_eq!(about(&did, "sweep").0, "warning", "{did:?}");
}

#[tokio::test]
async fn the_last_sweep_is_dated_on_every_store() {
    let (sqlite, _store) = Place::sqlite().await;
    let (postgres, _store) = Place::postgres().await;
    let (redis, _store) = Place::redis();
    for place in [&sqlite, &postgres, &redis] {
        let did = place.run(&["doctor"]);
        assert!(about(&did, "last sweep").1.contains("none"), "{did:?}");
        assert_eq!(place.run(&["records", "sweep"]).code, 0);
        let did = place.run(&["doctor"]);
        assert!(about(&did, "last sweep").1.contains("ended"), "{did:?}");
        assert_eq!(about(&did, "calls in doubt").0, "ok", "{did:?}");
        let listed = place.json(&["records", "ls"]);
        assert_eq!(listed.as_array().unwrap().len(), 0, "it is no call");
    }
    sqlite
        .execute("UPDATE mcp_idempotent_record SET lease_until = lease_until - 7200000000")
        .await;
    let did = sqlite.run(&["doctor"]);
    let (_, line) = about(&did, "last sweep");
    assert!(line.contains("ended 2h"), "{line}");
    assert_eq!(about(&did, "calls in doubt").0, "ok", "{did:?}");
}

#[tokio::test]
async fn tokens_behind_the_records_are_wrong() {
    let (place, store) = Place::sqlite().await;
    let billing = Billing::new(store);
    billing.leave_in_doubt(KEY).await;
    place
        .execute("UPDATE mcp_idempotent_record SET token = 9000000000000000000")
        .await;
    let did = place.run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    assert_eq!(about(&did, "tokens").0, "wrong");
}

#[tokio::test]
async fn a_pooler_that_shares_sessions_is_noticed_and_one_that_does_not_is_as_good_as_none() {
    for (mode, verdict) in [
        (PoolMode::Transaction, "warning"),
        (PoolMode::Session, "ok"),
    ] {
        let (mut place, _store) = Place::postgres().await;
        let server: PgConnectOptions = place.store[1].parse().unwrap();
        let pooler = Pooler::start(&server, mode, 4);
        place.store[1] = pooler.options(server).to_url_lossy().to_string();
        let did = place.run(&["doctor"]);
        assert_eq!(did.code, 0, "{mode:?}: {did:?}");
        assert_eq!(about(&did, "pooler").0, verdict, "{mode:?}: {did:?}");
        for what in ["tables and rights", "advisory locks", "a call"] {
            assert_eq!(about(&did, what).0, "ok", "{mode:?}: {did:?}");
        }
    }
}

#[tokio::test]
async fn a_standby_is_wrong_and_the_remedy_names_the_primary() {
    let primary = Cluster::start();
    let store = PostgresStore::connect(&primary.url()).unwrap();
    store.migrate().await.unwrap();
    let standby = primary.standby();
    let did = Place::at(&standby.url()).run(&["doctor"]);
    assert_eq!(did.code, 5, "{did:?}");
    let (verdict, line) = about(&did, "primary ");
    assert!(
        verdict == "wrong" && line.contains("is a standby"),
        "{did:?}"
    );
    assert!(did.out.contains("→ name the primary"), "{did:?}");
    assert_eq!(Place::at(&primary.url()).run(&["doctor"]).code, 0);
}
