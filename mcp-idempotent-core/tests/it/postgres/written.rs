//! What is written.

use mcp_idempotent_core::{
    Bytes, TransactionStore,
    store::{Completion, End, Ended},
};

use super::database::{Database, claim, result};

/// JSON goes out in another format than bytes that are no text.
#[tokio::test]
async fn a_result_of_any_bytes_comes_back_as_it_was() {
    let every: Vec<u8> = (0..=255).collect();
    let quotes = [br"\\ \x61 \' '' \".repeat(9), b"\\x6162".to_vec()].concat();
    let text = [&b"{\"text\":\"$1 $2 $10".repeat(40)[..], &every].concat();
    for (setting, prepared) in [("on", true), ("off", true), ("on", false)] {
        let database = Database::with(
            |options| options.options([("standard_conforming_strings", setting)]),
            |pool| pool,
            |store| store.with_prepared_statements(prepared),
        )
        .await;
        for (number, bytes) in [&every, &quotes, &text].into_iter().enumerate() {
            let claim = claim(&number.to_string(), "{}");
            let mut transaction = database.begin(&claim).await;
            database.write(&mut transaction, "once").await;
            let completion =
                Completion::new(Some(Bytes::from(bytes.clone())), result("").retention);
            let end = End::Commit(completion);
            let ended = database.store.end(transaction, Some(&claim), end).await;
            assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
            let stored: Vec<u8> =
                sqlx::query_scalar(database.sql("SELECT response FROM {s}.records WHERE id = $1"))
                    .bind(claim.id.as_bytes().as_slice())
                    .fetch_one(&database.outside)
                    .await
                    .unwrap();
            assert_eq!(&stored, bytes, "{setting}");
        }
    }
}
