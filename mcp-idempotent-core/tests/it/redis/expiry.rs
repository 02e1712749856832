//! Which records Redis itself removes: those that can say nothing more.

use mcp_idempotent_core::{Audit, OperatorStore as _, Resolution, store::Lease};

use super::*;
use crate::stores::lease;

/// For how long Redis itself keeps the record; `None` if it has no expiry.
async fn kept(server: &Server, claim: &Claim) -> Option<Duration> {
    let left: i64 = redis::cmd("PTTL")
        .arg(record_key(claim))
        .query_async(&mut connect(&server.url()).await)
        .await
        .unwrap();
    match left {
        -1 => None,
        left => Some(Duration::from_millis(
            left.try_into().expect("there is a record"),
        )),
    }
}

fn is_about(kept: Option<Duration>, expected: Duration) -> bool {
    let minute = Duration::from_secs(60);
    kept.is_some_and(|kept| kept > expected - minute && kept < expected + minute)
}

async fn released(store: &RedisStore, claim: &Claim) -> Lease {
    let lease = lease(store, claim).await;
    let hour = Duration::from_secs(3600);
    store.release(&lease, hour).await.unwrap();
    lease
}

#[tokio::test]
async fn a_record_in_progress_or_in_doubt_never_expires_whatever_was_there_before() {
    let server = Server::start();
    let (store, audit) = (store(&server.url()), Audit::new("who", "why").unwrap());
    released(&store, &claim(1)).await;
    assert!(kept(&server, &claim(1)).await.is_some());
    let first = lease(&store, &claim(1)).await;
    assert_eq!(kept(&server, &claim(1)).await, None);
    store.renew(&first, claim(1).lease).await.unwrap();
    assert_eq!(kept(&server, &claim(1)).await, None);
    store.abandon(&first).await.unwrap();
    assert_eq!(kept(&server, &claim(1)).await, None);
    let taken = store.take_over(&claim(1), first.token).await.unwrap();
    let second = taken.expect("it was in doubt");
    assert_eq!(kept(&server, &claim(1)).await, None);
    store
        .resolve(second.id, second.token, &Resolution::Release, &audit)
        .await
        .unwrap();
    assert!(is_about(kept(&server, &claim(1)).await, audit.kept));
    lease(&store, &claim(1)).await;
    assert_eq!(kept(&server, &claim(1)).await, None);
}

#[tokio::test]
async fn a_result_goes_by_itself_when_its_tombstone_ends() {
    let server = Server::start();
    let store = store(&server.url());
    for (key, tombstone) in [(1, 0), (2, 7200)] {
        let lease = lease(&store, &claim(key)).await;
        let mut result = completion(b"done");
        result.tombstone = Duration::from_secs(tombstone);
        let expected = result.retention + result.tombstone;
        store.complete(&lease, result).await.unwrap();
        assert!(is_about(kept(&server, &claim(key)).await, expected));
    }
}

#[tokio::test]
async fn what_is_left_of_a_record_that_has_gone_is_swept_and_not_listed() {
    let server = Server::start();
    let store = store(&server.url());
    let lease = lease(&store, &claim(1)).await;
    let brief = Completion::new(None, Duration::from_millis(1));
    store.complete(&lease, brief).await.unwrap();
    let mut connection = connect(&server.url()).await;
    let exists = async |connection: &mut MultiplexedConnection| {
        let found: bool = redis::cmd("EXISTS")
            .arg(record_key(&claim(1)))
            .query_async(connection)
            .await
            .unwrap();
        found
    };
    while exists(&mut connection).await {
        tokio::task::yield_now().await;
    }
    let listed = store.list(&Default::default()).await.unwrap();
    assert!(listed.is_empty(), "{listed:?}");
    assert_eq!(store.sweep(10).await.unwrap(), 1);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(keys, ["{mcp_idempotent}:last_token"]);
}

#[tokio::test]
async fn claims_sweep_where_nobody_else_does() {
    let server = Server::start();
    let store = store(&server.url());
    let claims: Vec<_> = (1..=6).map(claim).collect();
    for claim in &claims[..4] {
        let mut brief = claim.clone();
        (brief.lease, brief.in_doubt_retention) = (Duration::from_micros(1), Duration::ZERO);
        lease(&store, &brief).await;
    }
    for claim in &claims[4..] {
        lease(&store, claim).await;
    }
    let listed = store.list(&Default::default()).await.unwrap();
    assert_eq!(listed.len(), 2, "{listed:?}");
}
