//! A transaction inside a lease: both commit, or neither.

use super::*;

async fn complete(store: &SqliteStore, transaction: SqliteTransaction, lease: &Lease) -> Ended {
    let end = End::Complete(lease.clone(), completion(b"sent"));
    store.end(transaction, None, end).await
}

/// Runs SQL as a handler would that does not look at errors.
async fn try_sql(connection: &mut SqliteConnection, sql: &'static str) {
    drop(sqlx::raw_sql(sql).execute(connection).await);
}

#[tokio::test]
async fn lease_that_lapses_inside_its_own_transaction_commits_nothing() {
    let database = Database::new().await;
    let store = database.store();
    let lease = lease(&store, &claim(1)).await;
    let mut transaction = begin_unclaimed(&store).await;
    pay(&mut transaction, "late").await;
    // Nobody else can write meanwhile.
    let lapse = "UPDATE mcp_idempotent_record SET lease_until = lease_until - 120000000";
    try_sql(&mut transaction, lapse).await;
    let ended = complete(&store, transaction, &lease).await;
    assert!(matches!(ended, Ended::Fenced), "{ended:?}");
    assert!(database.payments().await.is_empty());
    // The lapse was rolled back too, and the store goes on.
    let mut transaction = begin_unclaimed(&store).await;
    pay(&mut transaction, "in time").await;
    let ended = complete(&store, transaction, &lease).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.payments().await, ["in time"]);
    assert_eq!(response(&found(&store, &claim(1)).await), b"sent");
}

#[tokio::test]
async fn commit_that_the_handler_left_behind_commits_nothing_of_its_own() {
    let database = Database::new().await;
    let store = database.store();
    let mut left = 0;
    for key in 0..40 {
        let lease = lease(&store, &claim(key)).await;
        let mut transaction = begin_unclaimed(&store).await;
        pay(&mut transaction, &format!("paid {key}")).await;
        let sent = sqlx::raw_sql("COMMIT").execute(&mut *transaction);
        drop(drop_at(usize::from(key) % 3, sent).await);
        let ended = complete(&store, transaction, &lease).await;
        let completed = matches!(
            state(&store, &claim(key)).await,
            Some(RecordState::Completed { .. })
        );
        let paid = database.payments().await.contains(&format!("paid {key}"));
        assert_eq!(paid, completed, "{key}: {ended:?}");
        assert_eq!(paid, matches!(ended, Ended::AsAsked(_)), "{key}: {ended:?}");
        left += usize::from(matches!(ended, Ended::EndedByHandler));
    }
    assert!(left > 0);
}

#[tokio::test]
async fn late_completion_behind_a_replaced_hook_is_not_taken_for_a_roll_back() {
    let database = Database::new().await;
    let store = database.store();
    let mut lease = lease(&store, &claim(1)).await;
    lease.token += 1;
    let mut transaction = begin_unclaimed(&store).await;
    pay(&mut transaction, "committed").await;
    transaction
        .lock_handle()
        .await
        .unwrap()
        .set_commit_hook(|| true);
    let ended = complete(&store, transaction, &lease).await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    assert_eq!(database.payments().await, ["committed"]);
}
