//! The two examples of one file.

use mcp_idempotent_tower::SqliteStore;
use serde_json::json;

use super::{call, call_with_key, connect, example, is_replay};

#[tokio::test]
async fn hello_sqlite_books_a_repeated_expense_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("expenses.db");
    let mut program = example("hello_sqlite");
    program.arg(&file);
    let (client, _server) = connect(program).await;

    // Without a key: a derived one says that the second is the first again.
    let lunch = json!({ "what": "lunch", "cents": 1250 });
    let first = call(client.peer(), "book_expense", lunch.clone()).await;
    let retry = call(client.peer(), "book_expense", lunch.clone()).await;
    assert_eq!(first.structured_content, Some(json!({ "id": 1 })));
    assert!(!is_replay(&first), "{first:?}");
    assert_eq!(retry.structured_content, first.structured_content);
    assert!(is_replay(&retry), "{retry:?}");

    // With one: a new key is a new lunch.
    for replay in [false, true] {
        let second = call_with_key(client.peer(), "book_expense", lunch.clone(), "second").await;
        assert_eq!(second.structured_content, Some(json!({ "id": 2 })));
        assert_eq!(is_replay(&second), replay);
    }
    let store = SqliteStore::open(&file).await.unwrap();
    let booked: i64 = sqlx::query_scalar("SELECT count(*) FROM expenses")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(booked, 2);
}

#[tokio::test]
async fn hello_layer_draws_one_ticket_for_one_key() {
    let (client, _server) = connect(example("hello_layer")).await;
    for (key, ticket, replay) in [
        ("a", "ticket 1", false),
        ("a", "ticket 1", true),
        // The repetition drew none.
        ("b", "ticket 2", false),
    ] {
        let drawn = call_with_key(client.peer(), "draw_ticket", json!({}), key).await;
        let text = drawn.content.first().and_then(|content| content.as_text());
        assert_eq!(text.map(|text| text.text.as_str()), Some(ticket));
        assert_eq!(is_replay(&drawn), replay, "{key}: {drawn:?}");
    }
}
