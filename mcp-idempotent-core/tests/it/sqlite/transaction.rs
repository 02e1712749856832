//! Claim and commit, as they go when nothing goes wrong.

use mcp_idempotent_core::store::{End, Ended, TransactionStore};
use sqlx::Connection;

use super::*;

#[tokio::test]
async fn nested_transactions_of_the_handler_are_savepoints() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    let mut nested = transaction.begin().await.unwrap();
    pay(&mut nested, "undone").await;
    nested.rollback().await.unwrap();
    let mut nested = transaction.begin().await.unwrap();
    pay(&mut nested, "kept").await;
    nested.commit().await.unwrap();
    assert!(database.payments().await.is_empty(), "still inside ours");
    let refused = transaction.begin_with("BEGIN IMMEDIATE").await.map(drop);
    assert!(
        matches!(refused, Err(sqlx::Error::InvalidSavePointStatement)),
        "{refused:?}"
    );
    let ended = store
        .end(transaction, Some(&claim(1)), End::Commit(completion(b"")))
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.payments().await, ["kept"]);

    // And on the same connection once more: the driver's count has not moved.
    let mut transaction = begin(&store, &claim(2)).await;
    let mut nested = transaction.begin().await.unwrap();
    pay(&mut nested, "dropped").await;
    drop(nested);
    let ended = store
        .end(transaction, Some(&claim(2)), End::Commit(completion(b"")))
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.payments().await, ["kept"]);
}

#[tokio::test]
async fn statement_error_that_the_handler_took_care_of_does_not_stop_the_commit() {
    let database = Database::new().await;
    let store = database.store();
    database
        .run("INSERT INTO payment (note, code) VALUES ('before', 'A')")
        .await;
    let mut transaction = begin(&store, &claim(1)).await;
    let duplicate = sqlx::query("INSERT INTO payment (note, code) VALUES ('again', 'A')")
        .execute(&mut *transaction)
        .await
        .unwrap_err();
    assert!(duplicate.as_database_error().unwrap().is_unique_violation());
    pay(&mut transaction, "instead").await;
    let ended = store
        .end(transaction, Some(&claim(1)), End::Commit(completion(b"")))
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.payments().await, ["before", "instead"]);
}

#[tokio::test]
async fn set_up_hook_sees_the_call_and_its_writes_belong_to_the_handler() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_on_begin(|connection, call| {
            Box::pin(async move {
                let scope = call.scope.as_ref().unwrap().as_str();
                let note = format!("{} for {scope}", call.tool);
                sqlx::query("INSERT INTO payment (note) VALUES (?1)")
                    .bind(note)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .build()
        .unwrap();
    let transaction = begin(&store, &claim(1)).await;
    store
        .end(
            transaction,
            Some(&claim(1)),
            End::RollBackAndRecord(completion(b"")),
        )
        .await;
    assert!(database.payments().await.is_empty());
    call(&store, &claim(2), "rent", b"").await;
    assert_eq!(
        database.payments().await,
        ["pay for alice@example.com", "rent"]
    );
    assert_eq!(response(&found(&store, &claim(2)).await), b"");
}

#[tokio::test]
async fn failing_set_up_hook_ends_the_call_before_the_handler() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_on_begin(|connection, _| {
            Box::pin(async move {
                sqlx::query("INSERT INTO payment (note) VALUES ('half')")
                    .execute(&mut *connection)
                    .await?;
                sqlx::query("INSERT INTO nowhere VALUES (1)")
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .build()
        .unwrap();
    let refused = store.begin(&claim(1).call, Some(&claim(1))).await;
    assert!(refused.is_err());
    assert!(database.payments().await.is_empty());
    let plain = database.store();
    assert!(is_free(&plain, &claim(1)).await);
}
