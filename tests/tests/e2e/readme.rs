//! The program of README.md, word for word, as a process that speaks MCP over stdio.

use std::process::Stdio;

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres, unique},
};
use serde_json::json;
use tokio::process::{Child, Command};

/// The program, running. It is killed when dropped.
struct Program {
    _child: Child,
    client: Client,
}

impl Program {
    async fn start(database_url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_readme"))
            .env("DATABASE_URL", database_url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let stdin = child.stdin.take().unwrap();
        let client = Client::connect(stdout, stdin).await.unwrap();
        Self {
            _child: child,
            client,
        }
    }
}

#[tokio::test]
async fn the_program_of_the_readme_charges_once_over_two_processes() {
    let database = Postgres::create().await;
    // Its own table is made in a schema of this test.
    let mut url = std::env::var("DATABASE_URL").unwrap();
    url.push(if url.contains('?') { '&' } else { '?' });
    url.push_str(&format!("options[search_path]={}", database.schema()));

    // The records of all runs are in the schema that the program names.
    let key = unique("readme");
    let charge = call(
        "charge_card",
        json!({ "customer": "Ann", "amount_cents": 1999 }),
    );
    let first = Program::start(&url).await;
    let charged = first.client.call(charge.clone().with_key(&*key)).await;
    assert_eq!(charged.result()["structuredContent"], json!({ "id": 1 }));
    let retry = first.client.call(charge.clone().with_key(&*key)).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), charged.json);

    let second = Program::start(&url).await;
    let retry = second.client.call(charge.clone().with_key(&*key)).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), charged.json);
    assert_eq!(database.integer("SELECT count(*) FROM charges").await, 1);

    let other = second.client.call(charge.with_key(unique("readme"))).await;
    assert_eq!(other.result()["structuredContent"], json!({ "id": 2 }));
}
