//! A client of nothing but lines: what a server really sends, byte for byte.

use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};

pub(crate) struct Wire {
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
    last_id: u64,
}

impl Wire {
    /// Serves `server` over a pipe. The newest revision has no handshake.
    pub(crate) fn connect(server: impl ServerHandler) -> Self {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            let running = server.serve(there).await.unwrap();
            running.waiting().await.unwrap();
        });
        let (reader, writer) = tokio::io::split(here);
        Self {
            lines: BufReader::new(reader).lines(),
            writer,
            last_id: 0,
        }
    }

    /// Calls a tool; `params` may have a `_meta`. Gives the answer without its id.
    pub(crate) async fn call(&mut self, mut params: Value) -> Value {
        let id = self.last_id + 1;
        self.last_id = id;
        for (key, value) in [
            ("protocolVersion", json!("2026-07-28")),
            ("clientInfo", json!({ "name": "wire", "version": "1" })),
            ("clientCapabilities", json!({})),
        ] {
            params["_meta"][format!("io.modelcontextprotocol/{key}")] = value;
        }
        let request =
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        self.writer
            .write_all(format!("{request}\n").as_bytes())
            .await
            .unwrap();
        loop {
            let line = self.lines.next_line().await.unwrap().unwrap();
            let mut answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                let answer = answer.as_object_mut().unwrap();
                answer.remove("id");
                answer.remove("jsonrpc");
                return answer.clone().into();
            }
        }
    }
}

/// Takes the marker of a replay out of an answer, and tells whether it was there.
pub(crate) fn take_marker(answer: &mut Value) -> bool {
    let Some(result) = answer["result"].as_object_mut() else {
        return false;
    };
    let Some(Value::Object(meta)) = result.get_mut("_meta") else {
        return false;
    };
    let marker = meta.remove("io.github.mcp-idempotent/replayed");
    let is_empty = meta.is_empty();
    if is_empty {
        result.remove("_meta");
    }
    marker.is_some_and(|marker| marker["at"].is_string())
}
