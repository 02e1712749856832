//! The programs of README.md, word for word, each as a process that speaks MCP over stdio.

use std::process::Stdio;

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres, unique},
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

/// A running program of README.md; it is killed when dropped.
struct Program {
    _child: Child,
    client: Client,
}

impl Program {
    async fn start(program: &str, database_url: &str) -> Self {
        let mut child = Command::new(program)
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
async fn the_attribute_of_the_readme_charges_once_over_two_processes() {
    const PROGRAM: &str = env!("CARGO_BIN_EXE_readme-attribute");
    let database = Postgres::create().await;
    // The table that its author has, in a schema of this test's own.
    database
        .execute(
            "CREATE TABLE charges (id bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, \
             amount_cents bigint NOT NULL)",
        )
        .await;
    let mut url = std::env::var("DATABASE_URL").unwrap();
    url.push(if url.contains('?') { '&' } else { '?' });
    url.push_str(&format!("options[search_path]={}", database.schema()));

    // The records of all runs are in the schema that the program names.
    let key = unique("readme");
    let charge = call(
        "charge_card",
        json!({ "customer": "Ann", "amount_cents": 1999 }),
    );
    let first = Program::start(PROGRAM, &url).await;
    let charged = first.client.call(charge.clone().with_key(&*key)).await;
    assert_eq!(charged.result()["structuredContent"], json!({ "id": 1 }));
    let retry = first.client.call(charge.clone().with_key(&*key)).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), charged.json);

    let second = Program::start(PROGRAM, &url).await;
    let retry = second.client.call(charge.clone().with_key(&*key)).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), charged.json);
    assert_eq!(database.integer("SELECT count(*) FROM charges").await, 1);

    let other = second.client.call(charge.with_key(unique("readme"))).await;
    assert_eq!(other.result()["structuredContent"], json!({ "id": 2 }));
}

#[tokio::test]
async fn the_layer_of_the_readme_sends_once() {
    let mailer = Program::start(env!("CARGO_BIN_EXE_readme-layer"), "").await;
    let send = |text: &str| call("send", json!({ "to": "Ann", "text": text })).with_key("k");
    let sent = mailer.client.call(send("hello")).await;
    assert_eq!(sent.success(), "sent 5 bytes to Ann");
    assert!(!sent.is_replay());
    let retry = mailer.client.call(send("hello")).await;
    assert!(retry.is_replay(), "{}", retry.line);
    assert_eq!(retry.unmarked(), sent.json);
    let other = mailer.client.call(send("good bye")).await;
    assert_eq!(other.refusal(), "idempotency_key_conflict");
    let tools = mailer.client.tools().await;
    let contract = &tools[0]["_meta"][mcp_idempotent_tower::wire::CONTRACT];
    assert_eq!(contract["key"], Value::from("optional"));
}
