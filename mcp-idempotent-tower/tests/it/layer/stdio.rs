//! Lines of JSON-RPC with the key in `params.idempotencyKey`.

use mcp_idempotent_tower::{KeyRequirement, ServerExt as _, stdio::LiftKeyReader};
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::{Mailer, layer, lease, number, refusal};

/// Says lines to a server, each in pieces of this many bytes, and returns the answers.
async fn said(server: impl ServerHandler, lines: &[String], piece: usize) -> Vec<Value> {
    let (client, input) = tokio::io::simplex(piece);
    let (output, answers) = tokio::io::duplex(1 << 16);
    let (_, output) = tokio::io::split(output);
    tokio::spawn(async move {
        let transport = (LiftKeyReader::new(client), output);
        let running = server.serve(transport).await.unwrap();
        drop(running.waiting().await);
    });
    let (answers, _keep) = tokio::io::split(answers);
    let mut answers = BufReader::new(answers).lines();
    let mut input = input;
    let mut heard = Vec::new();
    for line in lines {
        input
            .write_all(format!("{line}\n").as_bytes())
            .await
            .unwrap();
        if line.contains(r#""id""#) {
            let answer = answers.next_line().await.unwrap().unwrap();
            heard.push(serde_json::from_str(&answer).unwrap());
        }
    }
    heard
}

fn hello() -> [String; 2] {
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "c", "version": "1" },
    }});
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    [initialize.to_string(), initialized.to_string()]
}

fn send(id: u32, member: &str, more: &str) -> String {
    let arguments = r#""name":"send","arguments":{"text":"hello"}"#;
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{{member}{more}{arguments}}}}}"#
    )
}

#[tokio::test]
async fn two_keys_in_the_params_are_two_calls_and_one_key_is_one() {
    for piece in [1, 7, 1 << 16] {
        let mut lines = hello().to_vec();
        for (id, member) in [
            (1, r#""idempotencyKey":"a","#),
            (2, r#""idempotencyKey":"b","#),
            (3, r#""idempotencyKey":"a","#),
            (4, r#""\u0069dempotencyKey":"b","#),
        ] {
            lines.push(send(id, member, ""));
        }
        // Without the key all four would be equal calls.
        let server = Mailer::new().idempotent(layer(lease().with_key(KeyRequirement::Derived)));
        let answers = said(server, &lines, piece).await;
        let numbers: Vec<_> = answers[1..].iter().map(number).collect();
        assert_eq!(numbers, [1, 2, 1, 2], "pieces of {piece} bytes");
    }
}

#[tokio::test]
async fn a_key_in_the_params_that_contradicts_meta_is_refused() {
    let mut lines = hello().to_vec();
    let meta = r#""_meta":{"idempotency-key":"b"},"#;
    lines.push(send(1, r#""idempotencyKey":"a","#, meta));
    let answers = said(Mailer::new().idempotent(layer(lease())), &lines, 100).await;
    assert_eq!(refusal(&answers[1]).0, "idempotency_key_invalid");
}

#[tokio::test]
async fn every_other_line_passes_byte_for_byte_and_so_does_what_has_no_end() {
    let text = "{ \"method\": \"tools/list\" , \"params\":{\"idempotencyKey\":\"k\"} }\n\n\
                not JSON: idempotencyKey\r\n{\"method\":\"tools/call\",\"params\":{\"x\": 1.500}}\n\
                an end without a line break";
    for piece in [1, 7, 1000] {
        let (reader, mut writer) = tokio::io::simplex(piece);
        let writing = tokio::spawn(async move {
            writer.write_all(text.as_bytes()).await.unwrap();
            writer.shutdown().await.unwrap();
        });
        let mut passed = String::new();
        LiftKeyReader::new(reader)
            .read_to_string(&mut passed)
            .await
            .unwrap();
        writing.await.unwrap();
        assert_eq!(passed, text);
    }
}
