//! Handlers that try to end the transaction themselves, and databases that do.

use mcp_idempotent_core::{
    RecordState,
    store::{Claimed, End, Ended, StoreErrorKind, TransactionStore},
};
use sqlx::Connection;

use super::*;

/// Runs SQL as a handler would that does not look at errors.
async fn try_sql(connection: &mut SqliteConnection, sql: &'static str) -> bool {
    sqlx::raw_sql(sql).execute(connection).await.is_ok()
}

fn commit() -> End {
    End::Commit(completion(b"paid"))
}

/// Unlike what other databases do, nothing that was written before the `COMMIT` is there.
#[tokio::test]
async fn handler_that_ends_its_transaction_commits_nothing() {
    for sql in [
        "COMMIT",
        "COMMIT; BEGIN",
        "END TRANSACTION; BEGIN IMMEDIATE",
        "ROLLBACK; BEGIN IMMEDIATE",
        // By a conflict clause, and by a trigger.
        "INSERT INTO payment (note, code) VALUES ('a', 'A'); \
         INSERT OR ROLLBACK INTO payment (note, code) VALUES ('b', 'A')",
        "CREATE TEMP TRIGGER no BEFORE INSERT ON payment WHEN NEW.note = 'b' \
         BEGIN SELECT RAISE(ROLLBACK, 'no'); END; \
         INSERT INTO payment (note) VALUES ('b')",
    ] {
        let database = Database::new().await;
        let store = database.store();
        let held = lease(&store, &claim(3)).await;
        let claimed = claim(1);
        for (claimed, end) in [
            (Some(&claimed), commit()),
            (None, End::CommitUnrecorded),
            (None, End::Complete(held, completion(b"sent"))),
        ] {
            let begun = store.begin(&claim(1).call, claimed).await.unwrap();
            let Claimed::New(mut transaction) = begun else {
                panic!("the key is new");
            };
            pay(&mut transaction, "before").await;
            try_sql(&mut transaction, sql).await;
            let after = "INSERT INTO payment (note) VALUES ('after')";
            try_sql(&mut transaction, after).await;
            let ended = store.end(transaction, claimed, end).await;
            assert!(matches!(ended, Ended::EndedByHandler), "{sql}: {ended:?}");
            assert!(database.payments().await.is_empty(), "{sql}");
        }
        call(&store, &claim(2), "the next call", b"").await;
        assert_eq!(database.payments().await, ["the next call"], "{sql}");
    }
}

#[tokio::test]
async fn error_result_after_a_database_rollback_is_not_recorded() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    try_sql(
        &mut transaction,
        "INSERT INTO payment (note, code) VALUES ('a', 'A'); \
         INSERT OR ROLLBACK INTO payment (note, code) VALUES ('b', 'A')",
    )
    .await;
    let ended = store
        .end(
            transaction,
            Some(&claim(1)),
            End::RollBackAndRecord(completion(b"failed")),
        )
        .await;
    let Ended::Aborted(error) = ended else {
        panic!("{ended:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Aborted);
    assert!(is_free(&store, &claim(1)).await);
}

#[tokio::test]
async fn commit_that_the_database_refuses_is_aborted_and_the_key_is_free() {
    let database = Database::new().await;
    database
        .run(
            "CREATE TABLE line (payment TEXT REFERENCES payment (code) \
             DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    assert!(
        try_sql(
            &mut transaction,
            "INSERT INTO line (payment) VALUES ('nowhere')"
        )
        .await
    );
    let ended = store.end(transaction, Some(&claim(1)), commit()).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert!(database.payments().await.is_empty());
    call(&store, &claim(1), "rent again", b"paid").await;
    assert_eq!(database.payments().await, ["rent again"]);
}

#[tokio::test]
async fn handler_that_writes_the_record_itself_is_aborted() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    sqlx::query(
        "INSERT INTO mcp_idempotent_record (id, fingerprint, state, token, tool, created_at, \
         expires_at, purge_at, sweep_at) VALUES (?1, x'00', 2, 0, 'pay', 0, 9e18, 9e18, 9e18)",
    )
    .bind(&[1_u8; 32][..])
    .execute(&mut *transaction)
    .await
    .unwrap();
    let ended = store.end(transaction, Some(&claim(1)), commit()).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    assert!(database.payments().await.is_empty());
}

#[tokio::test]
async fn nested_begin_that_was_cancelled_does_not_roll_the_whole_back() {
    let database = Database::new().await;
    let store = database.store();
    for pending in 0..5 {
        let claim = claim(pending);
        let mut transaction = begin(&store, &claim).await;
        pay(&mut transaction, "kept").await;
        drop(drop_at(pending.into(), transaction.begin()).await);
        let ended = store.end(transaction, Some(&claim), commit()).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{pending}: {ended:?}");
    }
    assert_eq!(database.payments().await, ["kept"; 5]);
}

#[tokio::test]
async fn raw_commit_is_noticed_even_behind_a_replaced_hook() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "before").await;
    transaction
        .lock_handle()
        .await
        .unwrap()
        .remove_commit_hook();
    // The connection is not used again, so the next handler is protected as ever.
    let ended = store.end(transaction, Some(&claim(1)), commit()).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let mut transaction = begin(&store, &claim(2)).await;
    assert!(!try_sql(&mut transaction, "COMMIT").await);
}

#[tokio::test]
async fn raw_rollback_is_noticed_even_behind_a_removed_hook() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "never").await;
    transaction
        .lock_handle()
        .await
        .unwrap()
        .remove_commit_hook();
    assert!(try_sql(&mut transaction, "ROLLBACK").await);
    let ended = store.end(transaction, Some(&claim(1)), commit()).await;
    assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
    let record = found(&store, &claim(1)).await;
    assert!(
        matches!(record.state, RecordState::InDoubt { .. }),
        "{record:?}"
    );
    // The connection without the hook is not used again.
    let mut transaction = begin(&store, &claim(2)).await;
    assert!(!try_sql(&mut transaction, "COMMIT").await);
}

#[tokio::test]
async fn another_connection_in_the_place_of_ours_is_noticed_and_the_key_is_in_doubt() {
    for recorded in [true, false] {
        let database = Database::new().await;
        let store = database.store();
        let claimed = recorded.then(|| claim(1));
        let begun = store.begin(&claim(1).call, claimed.as_ref()).await.unwrap();
        let Claimed::New(mut transaction) = begun else {
            panic!("the key is new");
        };
        pay(&mut transaction, "never").await;
        let another = database.pool(1).acquire().await.unwrap().detach();
        let ours = std::mem::replace(&mut *transaction, another);
        ours.close().await.unwrap();
        let end = if recorded {
            commit()
        } else {
            End::CommitUnrecorded
        };
        let ended = store.end(transaction, claimed.as_ref(), end).await;
        assert!(matches!(ended, Ended::EndedByHandler), "{ended:?}");
        if recorded {
            let record = found(&store, &claim(1)).await;
            assert!(
                matches!(record.state, RecordState::InDoubt { .. }),
                "{record:?}"
            );
        }
        call(&store, &claim(2), "rent", b"paid").await;
        assert_eq!(database.payments().await, ["rent"]);
    }
}

#[tokio::test]
async fn a_connection_that_a_handler_made_read_only_is_not_used_for_long() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    assert!(try_sql(&mut transaction, "PRAGMA query_only = ON").await);
    let ended = store.end(transaction, Some(&claim(1)), commit()).await;
    assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    call(&store, &claim(1), "rent", b"paid").await;

    let mut transaction = begin(&store, &claim(2)).await;
    assert!(try_sql(&mut transaction, "PRAGMA query_only = ON").await);
    store.end(transaction, Some(&claim(2)), End::RollBack).await;
    // The first to find out is refused.
    assert!(store.begin(&claim(2).call, Some(&claim(2))).await.is_err());
    call(&store, &claim(2), "more", b"paid").await;
    assert_eq!(database.payments().await, ["rent", "more"]);
}
