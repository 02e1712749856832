//! What a server says that cannot tell.

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, OnError, Secret, ServerExt as _, SqliteStore, layer::Rule,
};
use serde_json::json;
use tempfile::TempDir;

use super::{
    super::{Mailer, hello, key, refusal, send},
    asked, status,
};
use crate::client::{Client, call, connect, params};

/// Servers of one application on one store, each with the secret that it was given.
async fn with_secret(store: &SqliteStore, secret: Option<&str>) -> (Client, Mailer) {
    let mut builder = Idempotency::builder("mailer", store.clone()).with_one_caller();
    if let Some(secret) = secret {
        builder = builder.with_secret(Secret::new(secret).unwrap());
    }
    let rule = Rule::lease(OnError::InDoubt);
    let layer = IdempotencyLayer::new(builder.build().unwrap(), rule).unwrap();
    let mailer = Mailer::new();
    (connect(mailer.clone().idempotent(layer)).await, mailer)
}

#[tokio::test]
async fn a_server_with_another_secret_tells_nothing_of_the_call() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("records.db");
    let store = SqliteStore::open(path).await.unwrap();
    let (first, _) = with_secret(&store, Some("the first secret of all")).await;
    assert_eq!(send(&first, key("k")).await, 1);

    for other in [Some("quite another secret"), None] {
        let (client, mailer) = with_secret(&store, other).await;
        for asked in [asked("k"), json!({ "key": "k" }), asked("never-seen")] {
            let found = status(&client, asked).await;
            // Neither that it was not seen, nor that it was not committed: it may have been.
            assert_eq!(
                refusal(&found),
                ("idempotency_misconfigured", "unknown"),
                "{found}"
            );
            assert_eq!(found["error"]["data"]["action"], "ask_operator");
            let message = found["error"]["message"].as_str().unwrap();
            assert!(message.contains("not known what became"), "{message}");
        }
        // Nor does it run anything.
        let answer = call(&client, params("send", hello(), key("k"))).await;
        assert_eq!(refusal(&answer).0, "idempotency_misconfigured");
        assert_eq!(mailer.sent(), 0);
    }

    let (same, _) = with_secret(&store, Some("the first secret of all")).await;
    let found = status(&same, asked("k")).await;
    assert_eq!(found["state"], "completed", "{found}");
    assert_eq!(found["result"]["structuredContent"]["number"], 1, "{found}");
}

#[tokio::test]
async fn without_the_store_it_is_not_known_what_became_of_the_call() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("records.db");
    let store = SqliteStore::open(path).await.unwrap();
    let (client, _) = with_secret(&store, None).await;
    assert_eq!(send(&client, key("k")).await, 1);
    store.close().await;
    let found = status(&client, asked("k")).await;
    assert_eq!(refusal(&found).1, "unknown", "{found}");
}
