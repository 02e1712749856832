//! While a transaction of another driver holds the record that it completes, and right after it.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{LeaseHandle, NotCurrent, ResultKind};
use sqlx::Executor as _;
use tokio::sync::oneshot;

use super::{ASK_AGAIN, another, commits, completion, never, replayed, run, server, writes};
use crate::{
    engine::{Reply, own, succeed},
    postgres::database::Database,
};

/// Whether a second has passed since the lease ended.
const LAPSED: &str =
    "SELECT max(lease_until) < clock_timestamp() - interval '1 s' FROM {s}.records";

/// Whether this many sessions of the store wait for a row.
fn waiting(database: &Database, sessions: u32) -> String {
    let options = database.pool.connect_options();
    let name = options.get_application_name().unwrap();
    format!(
        "SELECT count(*) = {sessions} FROM pg_stat_activity \
         WHERE wait_event_type = 'Lock' AND application_name = '{name}'"
    )
}

/// Whether a session of the store has looked the record up since the lease ended.
fn looked_up(database: &Database) -> String {
    let options = database.pool.connect_options();
    let name = options.get_application_name().unwrap();
    format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = '{name}' \
         AND query LIKE '%\\_look\\_up(%' \
         AND query_start > (SELECT max(lease_until) FROM {{s}}.records)"
    )
}

#[tokio::test]
async fn a_commit_that_is_still_under_way_is_waited_for() {
    for kind in [
        ResultKind::Success,
        ResultKind::ProtocolError,
        ResultKind::ErrorResult,
    ] {
        let (database, server) = server(|_| {}).await;
        let (hand_over, handed_over) = oneshot::channel();
        let handler = async |handle: LeaseHandle| {
            let transaction = writes(&database, &handle, "once").await;
            hand_over.send(transaction).ok().unwrap();
            Reply::new(kind, "failed")
        };
        let call = server.call_handled("key", handler);
        let (answer, ()) = tokio::join!(call, async {
            let transaction = handed_over.await.unwrap();
            database.until(&waiting(&database, 1)).await;
            transaction.commit().await.unwrap();
        });
        assert_eq!(answer, replayed("once"), "{kind:?}");
        assert_eq!(server.call_handled("key", never).await, replayed("once"));
        assert_eq!(database.effects().await, ["once"]);
    }
}

#[tokio::test]
async fn while_a_transaction_holds_the_record_no_renewal_waits_and_the_lease_is_not_lost() {
    let (database, server) = server(|policy| policy.lease = Duration::from_secs(2)).await;
    let handler = async |handle: LeaseHandle| {
        let transaction = writes(&database, &handle, "once").await;
        database.until(LAPSED).await;
        database.until(&waiting(&database, 0)).await;
        assert!(!handle.is_lost());
        handle.ensure_current().await.unwrap();
        transaction.commit().await.unwrap();
        succeed("once").await
    };
    assert_eq!(server.call_handled("key", handler).await, own("once"));
    assert_eq!(database.effects().await, ["once"]);
}

#[tokio::test]
async fn nobody_takes_a_call_over_while_its_transaction_holds_the_record() {
    let (database, server) = server(|policy| policy.lease = Duration::from_secs(1)).await;
    let handler = async |handle: LeaseHandle| {
        let transaction = writes(&database, &handle, "once").await;
        database.until(LAPSED).await;
        let comes = tokio::spawn({
            let other = another(&database);
            async move { other.call_handled("key", never).await }
        });
        // It finds the call in progress, and does not even try to take it over.
        database.until(&looked_up(&database)).await;
        database.until(&waiting(&database, 0)).await;
        assert!(!comes.is_finished());
        transaction.commit().await.unwrap();
        let answer = comes.await.unwrap();
        assert_eq!(answer, replayed("once"));
        succeed("once").await
    };
    assert_eq!(server.call_handled("key", handler).await, own("once"));
}

#[tokio::test]
async fn a_handler_that_goes_on_after_its_commit_has_not_lost_its_lease() {
    let (database, server) = server(|policy| policy.lease = Duration::from_secs(1)).await;
    let handler = async |handle: LeaseHandle| {
        commits(&database, &handle, "once").await;
        database.until(LAPSED).await;
        assert!(!handle.is_lost());
        let current = handle.ensure_current().await;
        assert!(matches!(current, Err(NotCurrent::Completed)), "{current:?}");
        assert!(!handle.is_lost());
        succeed("once").await
    };
    assert_eq!(server.call_handled("key", handler).await, own("once"));
}

/// The row is as it was before the wait, so Postgres does not look at its condition again.
#[tokio::test]
async fn a_completion_that_waits_past_its_lease_commits_nothing() {
    let (database, server) = server(|policy| policy.lease = Duration::from_secs(1)).await;
    let mut refused = None;
    let handler = async |handle: LeaseHandle| {
        let statement = completion(&handle, "late");
        let mut holder = database.outside.begin().await.unwrap();
        let held = database.sql("SELECT 1 FROM {s}.records FOR UPDATE");
        holder.execute(sqlx::raw_sql(held)).await.unwrap();
        let mut transaction = database.pool.begin().await.unwrap();
        database.write(&mut transaction, "late").await;
        let (ended, ()) = tokio::join!(run(&mut transaction, &statement), async {
            database.until(&waiting(&database, 1)).await;
            database.until(LAPSED).await;
            holder.rollback().await.unwrap();
        });
        refused = ended.err();
        // It pays no attention, and reports success.
        transaction.commit().await.unwrap();
        succeed("late").await
    };
    assert_eq!(server.call_handled("key", handler).await, ASK_AGAIN);
    let refused = refused.expect("the completion of a lease that has ended");
    assert!(
        refused.to_string().contains("has lost its lease"),
        "{refused}"
    );
    assert!(database.effects().await.is_empty());
}

#[tokio::test]
async fn an_attempt_commits_nothing_while_another_one_runs_that_took_over() {
    let (database, server) = server(|_| {}).await;
    let mut refused = None;
    let late = async |handle: LeaseHandle| {
        database
            .execute("UPDATE {s}.records SET lease_until = clock_timestamp() WHERE state = 0")
            .await;
        let (begins, begun) = oneshot::channel();
        let (ends, ended) = oneshot::channel::<()>();
        let takes_over = tokio::spawn({
            let database = Arc::clone(&database);
            async move {
                let handler = async |handle: LeaseHandle| {
                    begins.send(()).unwrap();
                    ended.await.unwrap();
                    commits(&database, &handle, "once").await;
                    succeed("once").await
                };
                another(&database).call_handled("key", handler).await
            }
        });
        begun.await.unwrap();
        let mut transaction = database.outside.begin().await.unwrap();
        database.write(&mut transaction, "late").await;
        let tried = run(&mut transaction, &completion(&handle, "late")).await;
        refused = tried.err();
        transaction.commit().await.unwrap();
        ends.send(()).unwrap();
        assert_eq!(takes_over.await.unwrap(), own("once"));
        succeed("late").await
    };
    assert_eq!(server.call_handled("key", late).await, ASK_AGAIN);
    let refused = refused.expect("the completion of an attempt that was taken over");
    assert!(
        refused.to_string().contains("has lost its lease"),
        "{refused}"
    );
    assert_eq!(database.effects().await, ["once"]);
}
