//! Many callers without an HTTP head: a listener has them, and a pipe may.

use mcp_idempotent_tower::{IdempotencyBuilder, Scope, SqliteStore};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

use super::{Desk, TOOLS};
use crate::client::{Client, call, params};

fn over_http(builder: IdempotencyBuilder<SqliteStore>) -> IdempotencyBuilder<SqliteStore> {
    builder.with_scope_from_http(|_| Ok(Scope::new("somebody over HTTP")))
}

/// Two clients of one server on one listener.
async fn two_clients(server: impl ServerHandler + Clone) -> [Client; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let server = server.clone();
            tokio::spawn(async move {
                let running = server.serve(stream).await.unwrap();
                running.waiting().await.unwrap();
            });
        }
    });
    let client = async || {
        let stream = TcpStream::connect(address).await.unwrap();
        ().serve(stream).await.unwrap()
    };
    [client().await, client().await]
}

#[tokio::test]
async fn two_clients_of_one_listener_do_not_get_each_others_results() {
    let directory = TempDir::new().unwrap();
    let desk = Desk::open(&directory, over_http).await;
    let clients = two_clients(desk.behind_the_layer()).await;
    for tool in TOOLS {
        for client in &clients {
            let key = json!({ "idempotency-key": "k" });
            let answer = call(client, params(tool, Value::Null, key)).await;
            let error = &answer["error"];
            assert_eq!(
                error["data"]["type"], "idempotency_misconfigured",
                "{answer}"
            );
            assert_eq!(error["data"]["outcome"], "not_committed", "{answer}");
            let message = error["message"].as_str().unwrap();
            for method in ["`IdempotencyBuilder::with_one_caller`", "`with_scope_from`"] {
                assert!(message.contains(method), "{message}");
            }
        }
    }
    assert_eq!(desk.runs(), 0);
}

#[tokio::test]
async fn two_clients_of_one_listener_share_results_where_the_author_says_so() {
    let directory = TempDir::new().unwrap();
    let shared = IdempotencyBuilder::with_scope_shared_by_all_callers;
    let desk = Desk::open(&directory, shared).await;
    for client in two_clients(desk.behind_the_layer()).await {
        let key = json!({ "idempotency-key": "k" });
        let answer = call(&client, params("layered_act", Value::Null, key)).await;
        assert_eq!(answer["result"]["content"][0]["text"], "run 1", "{answer}");
    }
}
