//! Connections that fall silent without being closed, at any message of either side.

use std::{error::Error as _, time::Duration};

use futures_util::{StreamExt as _, stream};
use mcp_idempotent_core::{
    OperatorStore, RecordQuery, RecordState, Store, TransactionStore,
    store::{Claim, Claimed, End, Ended, LeaseEnd, postgres::PostgresStoreBuilder},
};
use tokio::time::timeout;

use super::{
    database::{Database, claim, result},
    proxy::{Proxy, proxied, proxied_own},
};

const ACQUIRE: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(1);
const RECOVERY: Duration = Duration::from_secs(1);
/// What the documented sums leave to the machine.
const SLACK: Duration = Duration::from_secs(10);
/// A claim, a renewal, or the end of a lease.
const CLAIM: Duration = Duration::from_secs(6 + SLACK.as_secs());
/// The end of a transaction.
const END: Duration = Duration::from_secs(6 + SLACK.as_secs());
/// How many connections are silent at once.
const AT_ONCE: usize = 12;
const ATTEMPTS: u32 = 200;

fn bounded(store: PostgresStoreBuilder) -> PostgresStoreBuilder {
    store
        .with_acquire_timeout(ACQUIRE)
        .with_answer_timeout(ANSWER)
        .with_maintenance_timeout(ANSWER)
        .with_recovery_timeout(RECOVERY)
}

/// What the caller of a call was told.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    Done,
    NotDone,
    Unknown,
}

/// Makes a call once for each message that it takes, on a connection that falls silent with that message.
/// Then makes it again until it is done: it has one effect, and was told the truth before.
async fn at_every_message<F>(own: bool, call: impl Fn(Database, Claim) -> F + Copy)
where
    F: Future<Output = (Database, Told)>,
{
    let silent_at = |message: usize| async move {
        let (proxy, database) = if own {
            proxied_own(1, bounded).await
        } else {
            proxied(1, bounded).await
        };
        proxy.fall_silent_at(message);
        let claim = claim("key", "{}");
        let (database, told) = call(database, claim.clone()).await;
        let messages = proxy.messages();
        let effects = database.effects().await;
        match told {
            Told::Done => assert_eq!(effects, ["key"], "at message {message}"),
            Told::NotDone => assert!(effects.is_empty(), "at message {message}"),
            Told::Unknown => assert_ne!(message, 0),
        }
        // The server learns that the client has gone.
        proxy.come_up();
        if told == Told::Unknown {
            // Record and effect are one. Under a lease that was not completed, the caller has to wait
            // for its end.
            let kept = "SELECT count(*) FROM {s}.records WHERE state = 1";
            let are_one = format!("SELECT ({kept}) = count(*) FROM {{s}}.effects");
            database.until(&are_one).await;
            if database.records().await == 1 {
                return messages;
            }
        }
        let database = until_done(database, &claim, call).await;
        assert_eq!(database.effects().await, ["key"], "at message {message}");
        messages
    };
    let messages = silent_at(0).await;
    assert!(messages > 10, "a call takes {messages} messages");
    let calls = stream::iter(1..=messages).map(silent_at);
    calls.buffer_unordered(AT_ONCE).for_each(|_| async {}).await;
}

/// Makes the call until it is done. The key, and the pool's only place, come free.
async fn until_done<F>(
    mut database: Database,
    claim: &Claim,
    call: impl Fn(Database, Claim) -> F,
) -> Database
where
    F: Future<Output = (Database, Told)>,
{
    for _ in 0..ATTEMPTS {
        let told;
        (database, told) = call(database, claim.clone()).await;
        if told == Told::Done {
            return database;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the key stays in use");
}

async fn in_transaction(database: Database, claim: Claim) -> (Database, Told) {
    let begun = timeout(CLAIM, database.store.begin(&claim.call, Some(&claim)));
    let mut transaction = match begun.await.expect("a claim is bounded") {
        Ok(Claimed::New(transaction)) => transaction,
        Ok(Claimed::Found(_)) => return (database, Told::Done),
        Ok(Claimed::InProgress) => return (database, Told::NotDone),
        Ok(Claimed::Conflict) => panic!("equal calls do not conflict"),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            return (database, Told::NotDone);
        }
    };
    // The handler's own statements are the author's, who gives up here.
    let write = sqlx::raw_sql(database.sql("INSERT INTO {s}.effects VALUES ('key')"));
    let written = timeout(ANSWER, write.execute(&mut *transaction)).await;
    let (end, told) = match written {
        Ok(Ok(_)) => (End::Commit(result("done")), Told::Done),
        _ => (End::RollBack, Told::NotDone),
    };
    let ended = database.store.end(transaction, Some(&claim), end);
    let told = match timeout(END, ended).await.expect("an end is bounded") {
        Ended::AsAsked(_) => told,
        Ended::Aborted(_) => Told::NotDone,
        Ended::Unknown(_) => Told::Unknown,
        other => panic!("{other:?}"),
    };
    (database, told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_connection_falls_silent_at_any_message_is_answered_truthfully() {
    at_every_message(false, in_transaction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_on_a_connection_of_its_own_that_falls_silent_is_answered_truthfully() {
    at_every_message(true, in_transaction).await;
}

async fn under_a_lease(database: Database, claim: Claim) -> (Database, Told) {
    leased(database, claim, false).await
}

async fn under_a_lease_with_a_transaction(database: Database, claim: Claim) -> (Database, Told) {
    leased(database, claim, true).await
}

/// The effect is outside, and is made once under each lease. What was made is not known to the store until
/// the lease is completed; so the caller asks for that until the answer is certain, as the engine does.
async fn leased(database: Database, claim: Claim, with_transaction: bool) -> (Database, Told) {
    let claimed = timeout(CLAIM, database.store.claim(&claim));
    let lease = match claimed.await.expect("a claim is bounded") {
        Ok(Claimed::New(lease)) => lease,
        Ok(Claimed::Found(record)) if matches!(record.state, RecordState::Completed { .. }) => {
            return (database, Told::Done);
        }
        Ok(Claimed::Found(record)) => {
            let state = &record.state;
            assert!(matches!(state, RecordState::InProgress { .. }), "{state:?}");
            return (database, Told::NotDone);
        }
        Ok(Claimed::InProgress) => return (database, Told::NotDone),
        Ok(Claimed::Conflict) => panic!("equal calls do not conflict"),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            return (database, Told::NotDone);
        }
    };
    let renewed = timeout(CLAIM, database.store.renew(&lease, claim.lease));
    let renewed = renewed.await.expect("a renewal is bounded");
    assert!(!matches!(renewed, Ok(LeaseEnd::Fenced)), "{renewed:?}");
    if !with_transaction {
        database
            .execute("INSERT INTO {s}.effects VALUES ('key')")
            .await;
        for _ in 0..ATTEMPTS {
            let completed = database.store.complete(&lease, result("done"));
            let completed = timeout(CLAIM, completed).await;
            match completed.expect("a completion is bounded") {
                Ok(LeaseEnd::Done(_)) => return (database, Told::Done),
                Ok(LeaseEnd::Fenced) => panic!("nobody else has it"),
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        }
        panic!("a lease was never completed");
    }
    let begun = timeout(CLAIM, database.store.begin(&claim.call, None));
    let Ok(Claimed::New(mut transaction)) = begun.await.expect("a begin is bounded") else {
        let released = database.store.release(&lease, Duration::ZERO).await;
        assert!(released.is_ok(), "{released:?}");
        return (database, Told::NotDone);
    };
    let write = sqlx::raw_sql(database.sql("INSERT INTO {s}.effects VALUES ('key')"));
    let written = timeout(ANSWER, write.execute(&mut *transaction)).await;
    let end = match written {
        Ok(Ok(_)) => End::Complete(lease.clone(), result("done")),
        _ => End::RollBack,
    };
    let commits = matches!(end, End::Complete(..));
    let ended = timeout(END, database.store.end(transaction, None, end));
    let told = match ended.await.expect("an end is bounded") {
        Ended::AsAsked(_) if commits => return (database, Told::Done),
        Ended::AsAsked(_) | Ended::Aborted(_) => Told::NotDone,
        Ended::Unknown(_) => return (database, Told::Unknown),
        other => panic!("{other:?}"),
    };
    let released = timeout(CLAIM, database.store.release(&lease, Duration::ZERO));
    let released = released.await.expect("a release is bounded");
    assert!(!matches!(released, Err(error) if !error.is_transient()));
    (database, told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_connection_falls_silent_at_any_message_is_run_once() {
    at_every_message(false, under_a_lease).await;
    at_every_message(true, under_a_lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_with_a_transaction_that_falls_silent_at_any_message_has_one_effect() {
    at_every_message(false, under_a_lease_with_a_transaction).await;
    at_every_message(true, under_a_lease_with_a_transaction).await;
}

/// What is no part of a call: on a connection that falls silent with the statement itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_other_statement_on_a_silent_connection_is_bounded() {
    let proxy = Proxy::start(&super::database::options());
    let database = Database::with(
        |options| proxy.options(options),
        |pool| pool.max_connections(1).test_before_acquire(false),
        bounded,
    )
    .await;
    let (store, claim) = (&database.store, claim("key", "{}"));
    macro_rules! is_bounded {
        ($($what:expr),* $(,)?) => {
            $(
                // An idle connection, whose next message is the statement.
                proxy.fall_silent_at(0);
                store.look_up(&claim).await.unwrap();
                while database.pool.num_idle() == 0 {
                    tokio::task::yield_now().await;
                }
                proxy.fall_silent_at(1);
                drop(timeout(CLAIM, $what).await.expect(stringify!($what)));
                assert!(proxy.messages() > 0, stringify!($what));
            )*
        };
    }
    is_bounded!(
        store.look_up(&claim),
        store.inspect(&claim),
        store.sweep(100),
        store.list(&RecordQuery::default()),
        store.show(claim.id),
        store.verify(),
        store.migrate(),
    );
}

#[tokio::test]
async fn the_error_of_a_claim_without_a_connection_says_why() {
    let (proxy, database) = proxied(1, |store| {
        store.with_acquire_timeout(Duration::from_millis(200))
    })
    .await;
    proxy.go_down();
    let claim = claim("key", "{}");
    let error = database
        .store
        .claim(&claim)
        .await
        .expect_err("the database is away");
    assert!(error.is_transient(), "{error:?}");
    assert!(error.source().is_some(), "{error}");
    proxy.come_up();
    let _held = database.pool.acquire().await.unwrap();
    let error = database
        .store
        .claim(&claim)
        .await
        .expect_err("the pool is empty");
    assert!(error.to_string().contains("the pool has 1"), "{error}");
}

/// A server that takes connections and says nothing, as behind a frozen proxy.
#[tokio::test]
async fn the_error_of_a_claim_without_an_answering_server_has_its_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let database = Database::with(
        |options| options.host("127.0.0.1").port(port),
        |pool| pool.max_connections(2),
        |store| store.with_acquire_timeout(Duration::from_millis(200)),
    )
    .await;
    let claimed = database.store.claim(&claim("key", "{}")).await;
    let error = claimed.expect_err("nobody answers");
    assert!(error.is_transient(), "{error:?}");
    assert!(error.to_string().contains("accepts none"), "{error}");
    assert!(error.source().is_some(), "{error}");
}
