//! Claim and commit, as they go when nothing goes wrong.

use std::time::Duration;

use mcp_idempotent_core::{
    Bytes, RecordState,
    store::{Claimed, Completion, End, Ended, TransactionStore},
};
use sqlx::Connection;

use super::*;

#[tokio::test]
async fn effect_and_record_commit_together_and_the_retry_finds_the_result() {
    let database = Database::new().await;
    let store = database.store();
    let claim = claim(1);

    let mut transaction = begin(&store, &claim).await;
    pay(&mut transaction, "rent").await;
    assert!(database.payments().await.is_empty(), "not committed yet");
    let committed = store
        .end(transaction, Some(&claim), End::Commit(completion(b"paid")))
        .await;

    assert_eq!(database.payments().await, ["rent"]);
    let Ended::AsAsked(at) = committed else {
        panic!("{committed:?}")
    };
    let record = found(&store, &claim).await;
    assert_eq!(record.fingerprint, claim.fingerprint);
    assert!(matches!(record.state, RecordState::Completed { at: found, .. } if found == at));
    assert_eq!(response(&record), b"paid");
}

#[tokio::test]
async fn result_bytes_come_back_as_they_were_given() {
    let database = Database::new().await;
    let store = database.store();
    let every_byte: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let results: [Vec<u8>; 4] = [
        Vec::new(),
        vec![0],
        b"{\"b\":1.0,\"a\":\"\\u0000\0\"}".to_vec(),
        every_byte,
    ];
    for (key, result) in (1..).zip(results) {
        let claim = claim(key);
        let transaction = begin(&store, &claim).await;
        let completion = Completion::new(Some(Bytes::from(result.clone())), Duration::from_secs(9));
        store
            .end(transaction, Some(&claim), End::Commit(completion))
            .await;
        assert_eq!(response(&found(&store, &claim).await), result);
    }
}

#[tokio::test]
async fn result_too_large_to_keep_leaves_a_completed_record_without_one() {
    let database = Database::new().await;
    let store = database.store();
    let transaction = begin(&store, &claim(1)).await;
    let completion = Completion::new(None, Duration::from_secs(60));
    store
        .end(transaction, Some(&claim(1)), End::Commit(completion))
        .await;
    let record = found(&store, &claim(1)).await;
    assert!(
        matches!(record.state, RecordState::Completed { response: None, .. }),
        "{record:?}"
    );
}

#[tokio::test]
async fn another_fingerprint_under_a_used_key_finds_the_first_record() {
    let database = Database::new().await;
    let store = database.store();
    call(&store, &claim_asking(1, 1), "rent", b"paid").await;
    let record = found(&store, &claim_asking(1, 2)).await;
    assert_eq!(record.fingerprint, claim_asking(1, 1).fingerprint);
}

#[tokio::test]
async fn rolled_back_call_leaves_neither_effect_nor_record() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    let ended = store.end(transaction, Some(&claim(1)), End::RollBack).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert!(database.payments().await.is_empty());
    call(&store, &claim(1), "rent again", b"paid").await;
    assert_eq!(database.payments().await, ["rent again"]);
}

#[tokio::test]
async fn recorded_error_is_kept_without_its_effect() {
    let database = Database::new().await;
    let store = database.store();
    let mut transaction = begin(&store, &claim(1)).await;
    pay(&mut transaction, "rent").await;
    let ended = store
        .end(
            transaction,
            Some(&claim(1)),
            End::RollBackAndRecord(completion(b"declined")),
        )
        .await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert!(database.payments().await.is_empty());
    assert_eq!(response(&found(&store, &claim(1)).await), b"declined");
}

#[tokio::test]
async fn unprotected_call_commits_without_a_record() {
    let database = Database::new().await;
    let store = database.store();
    let call = claim(1).call;
    for note in ["once", "twice"] {
        let Claimed::New(mut transaction) = store.begin(&call, None).await.unwrap() else {
            panic!("an unprotected call is always new")
        };
        pay(&mut transaction, note).await;
        let ended = store.end(transaction, None, End::CommitUnrecorded).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
    assert_eq!(database.payments().await, ["once", "twice"]);
    assert!(is_free(&store, &claim(1)).await);
}

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
