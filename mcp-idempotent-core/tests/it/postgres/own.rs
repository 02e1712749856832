//! A store that owns its connections.

use std::time::Duration;

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{Claim, Claimed, Ended, LeaseEnd},
};
use sqlx::{Connection as _, Executor as _};
use tokio::time::timeout;

use super::{
    database::{Database, claim, lease, options, unique},
    proxy::{Proxy, proxied, proxied_own},
};

const BOUND: Duration = Duration::from_secs(20);

/// A store whose sessions have this name, and the number of its sessions.
async fn named(limit: u32) -> (Database, String) {
    let name = unique("own");
    let database = Database::owning(
        |options| options.application_name(&name),
        limit,
        |store| store,
    )
    .await;
    let sessions =
        format!("(SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}')");
    (database, sessions)
}

async fn is_called(database: &Database, key: &str) {
    let ended = database.call(&claim(key, "{}"), key).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

/// In another process, so that the store has not seen it completed.
async fn is_called_elsewhere(database: &Database, key: &str) -> Claim {
    let claim = claim(key, "{}");
    let ended = database.call_elsewhere(&claim, key).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    claim
}

async fn is_replayed(database: &Database, claim: &Claim) {
    let found = timeout(BOUND, database.store.begin(&claim.call, Some(claim)));
    let found = found.await.expect("it is answered");
    assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
}

#[tokio::test]
async fn a_first_call_is_three_messages_with_its_handlers_own() {
    let (proxy, database) = proxied_own(1, |store| store).await;
    is_called(&database, "warm").await;
    let before = proxy.turns();
    is_called(&database, "key").await;
    assert_eq!(proxy.turns() - before, 3);
}

#[tokio::test]
async fn a_replay_waits_for_one_answer() {
    let (proxy, database) = proxied_own(1, |store| {
        store.with_answer_timeout(Duration::from_secs(3600))
    })
    .await;
    is_called(&database, "warm").await;
    let first = is_called_elsewhere(&database, "key-1").await;
    let second = is_called_elsewhere(&database, "key-2").await;
    let third = is_called_elsewhere(&database, "key-3").await;
    proxy.fall_silent_at(0);
    is_replayed(&database, &first).await;
    // The next one reads what the first has left.
    is_replayed(&database, &second).await;
    let of_one = proxy.messages() / 2;
    database.store.look_up(&first).await.unwrap();
    // The answer to the ROLLBACK never comes.
    proxy.fall_silent_at(of_one);
    is_replayed(&database, &third).await;
    proxy.until_silent().await;
}

/// The lock is that of a call which runs, until the ROLLBACK has arrived.
#[tokio::test]
async fn a_replay_that_still_holds_its_lock_does_not_hide_the_record_from_another_process() {
    let (proxy, database) = proxied_own(1, |store| {
        store.with_answer_timeout(Duration::from_secs(3600))
    })
    .await;
    is_called(&database, "warm").await;
    let first = is_called_elsewhere(&database, "key-1").await;
    let claim = is_called_elsewhere(&database, "key-2").await;
    proxy.fall_silent_at(0);
    is_replayed(&database, &first).await;
    database.store.look_up(&claim).await.unwrap();
    let of_both = proxy.messages();
    proxy.fall_silent_at(0);
    database.store.look_up(&claim).await.unwrap();
    let of_replay = of_both - proxy.messages();
    // The answer to the ROLLBACK is two messages.
    proxy.fall_silent_at(of_replay - 2);
    is_replayed(&database, &claim).await;
    proxy.until_silent().await;
    let other = database.another_process(|store| store);
    let begun = other.begin(&claim.call, Some(&claim)).await;
    assert!(matches!(begun, Ok(Claimed::Found(_))), "{begun:?}");
    let claimed = other.claim(&claim).await;
    assert!(matches!(claimed, Ok(Claimed::Found(_))), "{claimed:?}");
}

#[tokio::test]
async fn a_replay_is_no_error_for_the_server() {
    let own = proxied_own(1, |store| store).await;
    let pooled = proxied(1, |store| store).await;
    for ((proxy, database), errors_at_first) in [(own, false), (pooled, true)] {
        is_called(&database, "key").await;
        proxy.fall_silent_at(0);
        for _ in 0..3 {
            is_replayed(&database, &claim("key", "{}")).await;
        }
        assert_eq!(proxy.errors(), 0);
        let answered_elsewhere = is_called_elsewhere(&database, "elsewhere").await;
        is_replayed(&database, &answered_elsewhere).await;
        let errors = proxy.errors();
        assert_eq!(errors > 0, errors_at_first);
        is_replayed(&database, &answered_elsewhere).await;
        assert_eq!(proxy.errors(), errors);
    }
}

#[tokio::test]
async fn calls_one_after_the_other_share_one_connection() {
    let (database, sessions) = named(4).await;
    for round in 0..10 {
        is_called(&database, &format!("key-{round}")).await;
        is_replayed(&database, &claim("key-0", "{}")).await;
    }
    database.until(&format!("SELECT {sessions} = 1")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_and_calls_wait_for_them() {
    let (database, sessions) = named(3).await;
    let calls = (0..24).map(|round| {
        let database = &database;
        async move { is_called(database, &format!("key-{round:02}")).await }
    });
    futures_util::future::join_all(calls).await;
    database.until(&format!("SELECT {sessions} <= 3")).await;
    assert_eq!(database.effects().await.len(), 24);
}

#[tokio::test]
async fn a_session_that_ended_while_it_was_idle_is_replaced() {
    let (database, sessions) = named(1).await;
    for key in ["one", "two", "three"] {
        is_called(&database, key).await;
        let name = sessions.split('\'').nth(1).unwrap();
        database
            .until(&format!(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) = 1 \
                 FROM pg_stat_activity WHERE application_name = '{name}'"
            ))
            .await;
        database.until(&format!("SELECT {sessions} = 0")).await;
    }
    is_replayed(&database, &claim("one", "{}")).await;
    assert_eq!(database.effects().await, ["one", "three", "two"]);
}

/// Our BEGIN is plain text to sqlx. If it did not count the transaction, a handler's own commit would be
/// ours.
#[tokio::test]
async fn a_handlers_transaction_is_a_savepoint_in_ours() {
    let (database, _) = named(1).await;
    for round in 0..2 {
        let claim = claim(&format!("key-{round}"), "{}");
        let mut transaction = database.begin(&claim).await;
        let mut nested = transaction.begin().await.unwrap();
        database.write(&mut nested, "kept").await;
        nested.commit().await.unwrap();
        let mut nested = transaction.begin().await.unwrap();
        database.write(&mut nested, "dropped").await;
        drop(nested);
        assert_eq!(database.effects().await.len(), round);
        let ended = database.commit(transaction, &claim, "done").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
    assert_eq!(database.effects().await, ["kept", "kept"]);
}

#[tokio::test]
async fn a_record_that_has_expired_is_no_replay() {
    let (database, _) = named(1).await;
    is_called(&database, "key").await;
    let claim = claim("key", "{}");
    database.age(claim.id, Duration::from_secs(3600)).await;
    is_called(&database, "key").await;
    assert_eq!(database.effects().await, ["key", "key"]);
    is_replayed(&database, &claim).await;
}

#[tokio::test]
async fn closing_the_store_ends_its_sessions() {
    let (database, sessions) = named(2).await;
    is_called(&database, "key").await;
    let lease = lease(&database.store, &claim("lease", "{}")).await;
    let renewed = database.store.renew(&lease, BOUND).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    database.until(&format!("SELECT {sessions} = 2")).await;
    let closed = timeout(BOUND, database.store.close());
    closed.await.expect("it does not wait");
    database.until(&format!("SELECT {sessions} = 0")).await;
    let claimed = database.store.claim(&claim("late", "{}")).await;
    assert!(claimed.expect_err("it is closed").is_transient());
}

/// Lets time pass for the store. Nothing waits meanwhile, or its time limit would end.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Makes a call, and says which session it used.
async fn session_of_a_call(database: &Database) -> i32 {
    let claim = claim(&unique("key"), "{}");
    let mut transaction = database.begin(&claim).await;
    let session = database.session(&mut *transaction).await;
    let ended = database.commit(transaction, &claim, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    session
}

/// Opens so many connections, which are all idle then.
async fn open(database: &Database, connections: usize) {
    let calls = (0..connections).map(|_| async {
        let claim = claim(&unique("key"), "{}");
        (database.begin(&claim).await, claim)
    });
    for (transaction, claim) in futures_util::future::join_all(calls).await {
        let ended = database.commit(transaction, &claim, "done").await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
}

#[tokio::test]
async fn the_connection_that_was_used_last_comes_first() {
    let (database, sessions) = named(3).await;
    open(&database, 3).await;
    database.until(&format!("SELECT {sessions} = 3")).await;
    let first = session_of_a_call(&database).await;
    for _ in 0..3 {
        assert_eq!(session_of_a_call(&database).await, first);
    }
}

#[tokio::test]
async fn a_connection_in_use_gets_no_older_than_half_an_hour() {
    const STEP: Duration = Duration::from_secs(9 * 60);
    let (database, sessions) = named(1).await;
    let first = session_of_a_call(&database).await;
    for _ in 0..3 {
        pass(STEP).await;
        assert_eq!(session_of_a_call(&database).await, first);
    }
    pass(STEP).await;
    assert_ne!(session_of_a_call(&database).await, first);
    database.until(&format!("SELECT {sessions} = 1")).await;
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_after_ten_minutes() {
    let (database, sessions) = named(2).await;
    open(&database, 2).await;
    database.until(&format!("SELECT {sessions} = 2")).await;
    pass(Duration::from_secs(12 * 60)).await;
    database.until(&format!("SELECT {sessions} = 0")).await;
}

/// The answer to the claim itself would be waited for much longer.
#[tokio::test]
async fn a_connection_that_fell_silent_while_it_was_idle_is_not_waited_for_and_neither_are_others()
{
    let (name, proxy) = (unique("own"), Proxy::start(&options()));
    let database = Database::owning(
        |options| proxy.options(options.application_name(&name)),
        3,
        |store| store.with_answer_timeout(Duration::from_secs(3600)),
    )
    .await;
    open(&database, 3).await;
    pass(Duration::from_secs(31)).await;
    proxy.fall_silent_at(1);
    let called = timeout(BOUND, session_of_a_call(&database)).await;
    called.expect("it is asked whether it is there");
    // For the server, the silent one and the new one are there.
    database
        .until(&format!(
            "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = '{name}'"
        ))
        .await;
    proxy.come_up();
}

/// More of them than a call has tries.
#[tokio::test]
async fn of_connections_that_are_all_lost_a_call_tries_one() {
    const CONNECTIONS: usize = 12;
    let (database, sessions) = named(12).await;
    open(&database, CONNECTIONS).await;
    let name = sessions.split('\'').nth(1).unwrap();
    database
        .until(&format!(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) = {CONNECTIONS} \
             FROM pg_stat_activity WHERE application_name = '{name}'"
        ))
        .await;
    database.until(&format!("SELECT {sessions} = 0")).await;
    is_called(&database, "key").await;
    // Nobody has to try the others any more.
    database.until(&format!("SELECT {sessions} = 1")).await;
}

/// Another connection may lead to the primary.
#[tokio::test]
async fn a_connection_on_which_a_record_is_refused_as_read_only_is_closed() {
    let (database, _) = named(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let session = database.session(&mut *transaction).await;
    transaction
        .execute("SET TRANSACTION READ ONLY")
        .await
        .unwrap();
    let large = "x".repeat(100_000);
    let ended = database.commit(transaction, &claim, &large).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert_ne!(session_of_a_call(&database).await, session);
}

#[tokio::test]
async fn a_connection_on_which_a_claim_is_refused_as_read_only_is_closed() {
    let (database, _) = named(1).await;
    let claimed = claim("key", "{}");
    let mut transaction = database.begin(&claimed).await;
    let session = database.session(&mut *transaction).await;
    transaction
        .execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        .await
        .unwrap();
    let ended = database.commit(transaction, &claimed, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    lease(&database.store, &claim("lease", "{}")).await;
    assert_ne!(session_of_a_call(&database).await, session);
}
