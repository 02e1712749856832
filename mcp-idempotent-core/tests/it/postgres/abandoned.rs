//! Statements that somebody gave up, and that fail later on the connection that we use.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{Claimed, End, Ended, LeaseEnd},
};
use sqlx::{AssertSqlSafe, Executor, PgConnection};

use super::database::{Database, begin_unclaimed, claim, lease, result};

/// Statements that fail with a code that our own statements answer with.
const FAILING: [&str; 7] = [
    "SELECT 1 / 0",
    "SELECT ln(0)",
    "SELECT sqrt(-1)",
    "SELECT substr('', 1, -1)",
    "ROLLBACK TO nowhere",
    "EXECUTE unknown",
    "PREPARE known AS SELECT 1; PREPARE known AS SELECT 1",
];

/// Sends `sql`, and gives up before the answer.
async fn give_up(connection: &mut PgConnection, sql: &str) {
    let mut query = pin!(connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))));
    std::future::poll_fn(|context| {
        assert!(query.as_mut().poll(context).is_pending(), "it was answered");
        Poll::Ready(())
    })
    .await;
}

/// Gives `sql` up on `connection`, and lets the server run it only then.
async fn give_up_before_it_runs(database: &Database, connection: &mut PgConnection, sql: &str) {
    let mut gate = database.outside.begin().await.unwrap();
    let lock = |mode: &str| {
        database.sql(&format!(
            "SELECT pg_advisory_xact_lock{mode}(hashtext('{{s}}'))"
        ))
    };
    gate.execute(sqlx::raw_sql(lock(""))).await.unwrap();
    give_up(connection, &format!("{}; {sql}", lock("_shared").0)).await;
    gate.rollback().await.unwrap();
}

#[tokio::test]
async fn a_statement_that_the_handler_gave_up_is_no_answer_of_ours() {
    let database = Database::with_pool(1).await;
    for (index, sql) in FAILING.into_iter().enumerate() {
        let ends = [
            End::Commit(result("result")),
            End::Commit(result(&"x".repeat(100_000))),
            End::CommitUnrecorded,
            End::RollBackAndRecord(result("error")),
            End::RollBack,
        ];
        for (kind, end) in ends.into_iter().enumerate() {
            let what = format!("{sql} / {end:?}");
            let claim = claim(&format!("key-{index}-{kind}"), "{}");
            let mut transaction = database.begin(&claim).await;
            database.write(&mut transaction, "undone").await;
            give_up_before_it_runs(&database, &mut transaction, sql).await;
            let as_asked = matches!(end, End::RollBack);
            let ended = database.store.end(transaction, Some(&claim), end).await;
            if as_asked {
                assert!(matches!(ended, Ended::AsAsked(_)), "{what}: {ended:?}");
            } else {
                assert!(matches!(ended, Ended::Aborted(_)), "{what}: {ended:?}");
            }
            assert_eq!(database.records().await, 0, "{what}");
            drop(database.begin(&claim).await);
        }
    }
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn a_statement_that_the_handler_gave_up_is_no_answer_about_its_lease() {
    let database = Database::new().await;
    for sql in FAILING {
        let claim = claim(&sql.replace(' ', "-"), "{}");
        let lease = lease(&database.store, &claim).await;
        let mut transaction = begin_unclaimed(&database, &claim, "undone").await;
        give_up_before_it_runs(&database, &mut transaction, sql).await;
        let end = End::Complete(lease.clone(), result("done"));
        let ended = database.store.end(transaction, None, end).await;
        assert!(matches!(ended, Ended::Aborted(_)), "{sql}: {ended:?}");
        let renewed = database.store.renew(&lease, claim.lease).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    }
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn a_statement_that_the_handler_gave_up_and_that_succeeds_is_part_of_the_transaction() {
    let database = Database::with_pool(1).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let sql = format!("INSERT INTO {}.effects VALUES ('late')", database.schema);
    give_up_before_it_runs(&database, &mut transaction, &sql).await;
    let ended = database.commit(transaction, &claim, "result").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.effects().await, ["late"]);
}

#[tokio::test]
async fn a_commit_that_the_handler_gave_up_is_noticed() {
    let database = Database::with_pool(1).await;
    for (index, sql) in [
        "COMMIT",
        "COMMIT; SELECT 1 / 0",
        "ROLLBACK; BEGIN; SELECT 1 / 0",
    ]
    .into_iter()
    .enumerate()
    {
        for end in [End::Commit(result("result")), End::RollBack] {
            let claim = claim(
                &format!("key-{index}-{}", matches!(end, End::RollBack)),
                "{}",
            );
            let mut transaction = database.begin(&claim).await;
            give_up_before_it_runs(&database, &mut transaction, sql).await;
            let ended = database.store.end(transaction, Some(&claim), end).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
        }
    }
}

#[tokio::test]
async fn a_statement_that_another_user_of_the_pool_gave_up_is_no_answer_of_ours() {
    let database = Database::with_pool(1).await;
    for sql in FAILING {
        let key = sql.replace(' ', "-");
        let mut connection = database.pool.acquire().await.unwrap();
        give_up_before_it_runs(&database, &mut connection, sql).await;
        drop(connection);
        let ended = database.call(&claim(&key, "{}"), &key).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{sql}: {ended:?}");
    }
}

/// Unlike what its users give up, the pool itself does not notice this.
#[tokio::test]
async fn a_statement_that_a_hook_of_the_pool_gave_up_is_no_answer_of_ours() {
    let next = Arc::new(AtomicUsize::new(usize::MAX));
    let database = Database::with(
        |options| options,
        |pool| {
            let next = Arc::clone(&next);
            pool.max_connections(1)
                .before_acquire(move |connection, _| {
                    let sql = FAILING.get(next.load(Ordering::SeqCst));
                    Box::pin(async move {
                        if let Some(sql) = sql {
                            // The rest makes sure that it is not answered at once.
                            give_up(connection, &format!("SELECT pg_sleep(0.01); {sql}")).await;
                        }
                        Ok(true)
                    })
                })
        },
        |store| store,
    )
    .await;
    database.call(&claim("known", "{}"), "known").await;
    let period = Duration::from_secs(60);
    for index in 0..FAILING.len() {
        next.store(index, Ordering::SeqCst);
        let (call, leased) = (format!("call-{index}"), format!("lease-{index}"));
        let ended = database.call(&claim(&call, "{}"), &call).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{call}: {ended:?}");
        let found = database.store.look_up(&claim("known", "{}")).await;
        assert!(matches!(found, Ok(Some(_))), "{call}: {found:?}");
        let claimed = database.store.claim(&claim(&leased, "{}")).await;
        let Ok(Claimed::New(lease)) = claimed else {
            panic!("{leased}: {claimed:?}");
        };
        let renewed = database.store.renew(&lease, period).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        next.store(usize::MAX, Ordering::SeqCst);
    }
}
