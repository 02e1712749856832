//! Sessions that are terminated at random moments, under callers that retry until they are answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{Claimed, Completion, End, Ended, LeaseEnd, postgres::Isolation},
};

use super::database::{Database, claim, result};

const KEYS: usize = 60;
const CALLERS: usize = 8;
const ATTEMPTS: u32 = 5000;

/// On a busy machine one caller of a key may come minutes after the other.
pub(super) fn kept(key: &str) -> Completion {
    let mut completion = result(key);
    completion.retention = Duration::from_secs(24 * 60 * 60);
    completion
}

/// Calls under `key` until a record says that it is done.
async fn until_answered(database: &Database, key: &str) {
    let claim = claim(key, "{}");
    for _ in 0..ATTEMPTS {
        match database.store.begin(&claim.call, Some(&claim)).await {
            Ok(Claimed::New(mut transaction)) => {
                let written = sqlx::query(database.sql("INSERT INTO {s}.effects VALUES ($1)"))
                    .bind(key)
                    .execute(&mut *transaction)
                    .await;
                if written.is_err() {
                    continue;
                }
                let end = End::Commit(kept(key));
                match database.store.end(transaction, Some(&claim), end).await {
                    Ended::AsAsked(_) | Ended::Lost(_) => return,
                    Ended::Aborted(_) | Ended::LostInProgress | Ended::Unknown(_) => {}
                    Ended::EndedByHandler | Ended::Fenced => {
                        panic!("the handler did no such thing")
                    }
                }
            }
            Ok(Claimed::Found(_)) => return,
            Ok(Claimed::InProgress) => tokio::time::sleep(Duration::from_millis(1)).await,
            Ok(Claimed::Conflict) => panic!("equal calls do not conflict"),
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
    }
    panic!("{key} was never answered");
}

/// Calls every key from two callers at once while sessions are terminated, until `answered` says that
/// the key's call is; then each has one effect.
pub(super) async fn one_effect_per_key_while_sessions_are_terminated<F>(
    answered: impl Fn(Arc<Database>, String) -> F + Clone + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    for isolation in [Isolation::ReadCommitted, Isolation::Serializable] {
        let name = super::database::unique("faults");
        let database = Database::with(
            |options| options.application_name(&name),
            |pool| pool.max_connections(8).test_before_acquire(false),
            |store| store.with_isolation(isolation),
        )
        .await;
        let database = Arc::new(database);
        let done = Arc::new(AtomicBool::new(false));
        let killer = tokio::spawn({
            let (database, done) = (Arc::clone(&database), Arc::clone(&done));
            async move {
                let mut killed = 0_i64;
                while !done.load(Ordering::SeqCst) {
                    killed += sqlx::query_scalar::<_, i64>(
                        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (SELECT pid \
                         FROM pg_stat_activity WHERE application_name = $1 \
                         ORDER BY random() LIMIT 1) AS one",
                    )
                    .bind(&name)
                    .fetch_one(&database.outside)
                    .await
                    .unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                killed
            }
        });
        // Every key is called by two callers at once.
        let callers = (0..CALLERS).map(|caller| {
            let (database, answered) = (Arc::clone(&database), answered.clone());
            tokio::spawn(async move {
                for key in (0..KEYS).filter(|key| key % (CALLERS / 2) == caller / 2) {
                    answered(Arc::clone(&database), format!("key-{key:03}")).await;
                }
            })
        });
        for caller in callers.collect::<Vec<_>>() {
            caller.await.unwrap();
        }
        done.store(true, Ordering::SeqCst);
        assert!(killer.await.unwrap() > 0, "nothing was terminated");
        let expected: Vec<_> = (0..KEYS).map(|key| format!("key-{key:03}")).collect();
        assert_eq!(database.effects().await, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn terminated_sessions_leave_one_effect_per_key() {
    one_effect_per_key_while_sessions_are_terminated(|database, key| async move {
        until_answered(&database, &key).await;
    })
    .await;
}

/// A lease whose session was terminated can still be ended on another one.
#[tokio::test]
async fn a_lease_outlives_the_session_that_claimed_it() {
    let name = super::database::unique("faults");
    let database = Database::with(
        |options| options.application_name(&name),
        |pool| pool.max_connections(1).test_before_acquire(false),
        |store| store,
    )
    .await;
    let ends = [true, false];
    for completes in ends {
        let Ok(Claimed::New(lease)) = database
            .store
            .claim(&claim(&format!("key-{completes}"), "{}"))
            .await
        else {
            panic!("the key is new");
        };
        database
            .until(&format!(
                "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) = 1 \
                 FROM pg_stat_activity WHERE application_name = '{name}'"
            ))
            .await;
        let end = if completes {
            database.store.complete(&lease, result("done")).await
        } else {
            database.store.abandon(&lease).await
        };
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    }
}
