//! A record is looked up by a prepared name, or by the statement in full.

use std::time::Duration;

use mcp_idempotent_core::{
    OnExpired, Record, RecordState, Store, TransactionStore,
    store::{Claim, Claimed, Completion, End, Ended, postgres::PostgresStore},
};

use super::{
    database::{Database, claim, result},
    proxy::{proxied, proxied_own},
};

/// What both ways read, which must be the same.
async fn read_both_ways(named: &PostgresStore, in_full: &PostgresStore, claim: &Claim) -> String {
    let mut read = Vec::new();
    for store in [named, in_full] {
        let record = store.look_up(claim).await.unwrap();
        read.push(format!("{:?}", record.map(without_the_time)));
    }
    assert_eq!(read[0], read[1]);
    read.swap_remove(0)
}

/// The rest of a lease goes on between two looks.
fn without_the_time(mut record: Record) -> Record {
    if let RecordState::InProgress { lease_remaining } = &mut record.state {
        assert!(
            *lease_remaining > Duration::from_secs(3000),
            "{lease_remaining:?}"
        );
        assert!(
            *lease_remaining <= Duration::from_secs(3600),
            "{lease_remaining:?}"
        );
        *lease_remaining = Duration::ZERO;
    }
    record
}

#[tokio::test]
async fn a_look_up_by_name_reads_what_one_in_full_reads() {
    // A session may write bytes as it likes.
    let database = Database::with(
        |options| options.options([("bytea_output", "escape"), ("TimeZone", "Pacific/Chatham")]),
        |pool| pool.max_connections(1),
        |store| store,
    )
    .await;
    let in_full = database.another_process(|store| store.with_prepared_statements(false));
    let named = &database.store;
    let read = |claim: Claim| {
        let in_full = &in_full;
        async move { read_both_ways(named, in_full, &claim).await }
    };

    assert_eq!(read(claim("absent", "{}")).await, "None");

    let completed = claim("completed", "{}");
    let transaction = database.begin(&completed).await;
    let ended = database.commit(transaction, &completed, "bytes: \0 \u{fc} \\");
    assert!(matches!(ended.await, Ended::AsAsked(_)));
    assert!(read(completed.clone()).await.contains("Completed"));
    let found = named.look_up(&completed).await.unwrap().unwrap();
    let RecordState::Completed { response, .. } = found.state else {
        panic!("it is completed");
    };
    assert_eq!(response.unwrap(), "bytes: \0 \u{fc} \\".as_bytes());

    let empty = claim("empty", "{}");
    database.call(&empty, "").await;
    assert!(read(empty).await.contains("response: Some(b\"\")"));

    let too_large = claim("too-large", "{}");
    let transaction = database.begin(&too_large).await;
    let end = Completion::new(None, Duration::from_secs(60));
    let end = End::Commit(end);
    let ended = named.end(transaction, Some(&too_large), end);
    assert!(matches!(ended.await, Ended::AsAsked(_)));
    assert!(read(too_large).await.contains("response: None"));

    let mut leased = claim("leased", "{}");
    leased.lease = Duration::from_secs(3600);
    let lease = named.claim(&leased).await;
    assert!(matches!(lease, Ok(Claimed::New(_))), "{lease:?}");
    assert!(read(leased.clone()).await.contains("InProgress"));
    database.age(leased.id, Duration::from_secs(3601)).await;
    assert!(read(leased).await.contains("InDoubt"));

    let mut expired = claim("expired", "{}");
    expired.on_expired = OnExpired::Refuse;
    let transaction = database.begin(&expired).await;
    let mut end = result("forgotten");
    end.tombstone = Duration::from_secs(3600);
    let end = End::Commit(end);
    let ended = named.end(transaction, Some(&expired), end);
    assert!(matches!(ended.await, Ended::AsAsked(_)));
    database.age(expired.id, Duration::from_secs(120)).await;
    assert!(read(expired.clone()).await.contains("Expired"));
    expired.on_expired = OnExpired::New;
    assert_eq!(read(expired).await, "None");
}

/// Otherwise a call that ends between the two would be taken for one that never was, and run in vain.
#[tokio::test]
async fn a_claim_tries_its_locks_before_it_looks_for_a_record() {
    for own in [false, true] {
        let (proxy, database) = if own {
            proxied_own(1, |store| store.with_prepared_statements(false)).await
        } else {
            proxied(1, |store| store.with_prepared_statements(false)).await
        };
        database.call(&claim("warm", "{}"), "warm").await;
        proxy.listen();
        let transaction = database.begin(&claim("key", "{}")).await;
        let heard = String::from_utf8_lossy(&proxy.heard()).into_owned();
        let locks = heard.find("pg_try_advisory_xact_lock").unwrap();
        let looks = heard.find(".records").unwrap();
        assert!(locks < looks, "{heard}");
        drop(transaction);
    }
}
