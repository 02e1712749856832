//! A pipe to a server that loses things.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
};

use mcp_idempotent_tower::client::Attempt;
use rmcp::{ServerHandler, ServiceExt as _};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, split};

use super::Client;

/// What a link does to a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Breaks before the answer gets through.
    LosesTheAnswer,
    /// The answer never comes, and nothing breaks.
    KeepsTheAnswer,
}

/// The params of all calls that were sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent(Arc<Mutex<Vec<Value>>>);

impl Sent {
    pub(super) fn params(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }

    /// The key of each call, as `_meta` has it.
    pub(super) fn keys(&self) -> Vec<Value> {
        let params = self.params();
        params
            .iter()
            .map(|params| params["_meta"]["idempotency-key"].clone())
            .collect()
    }
}

type Connecting = Pin<Box<dyn Future<Output = Result<Client, Infallible>> + Send>>;

/// Connects anew for each attempt, over links with these faults in turn, then over good ones.
pub(super) fn connector(
    server: &(impl ServerHandler + Clone),
    faults: impl Into<VecDeque<Fault>>,
    sent: &Sent,
) -> impl FnMut(Attempt) -> Connecting + Send {
    let (server, sent) = (server.clone(), sent.clone());
    let mut faults = faults.into();
    move |_| {
        let fault = faults.pop_front().unwrap_or(Fault::None);
        let (server, sent) = (server.clone(), sent.clone());
        Box::pin(async move { Ok(connect(server, fault, &sent).await) })
    }
}

pub(super) async fn connect(server: impl ServerHandler, fault: Fault, sent: &Sent) -> Client {
    let (here, client_side) = tokio::io::duplex(1 << 16);
    let (server_side, there) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move {
        let running = server.serve(there).await.unwrap();
        running.waiting().await.unwrap();
    });
    tokio::spawn(carry(client_side, server_side, fault, sent.clone()));
    ().serve(here).await.unwrap()
}

/// Carries lines, until either side ends or the fault comes up.
async fn carry(client: DuplexStream, server: DuplexStream, fault: Fault, sent: Sent) {
    let (from_client, mut to_client) = split(client);
    let (from_server, mut to_server) = split(server);
    let mut from_client = BufReader::new(from_client).lines();
    let mut from_server = BufReader::new(from_server).lines();
    let mut calls = Vec::new();
    loop {
        tokio::select! {
            line = from_client.next_line() => {
                let Ok(Some(line)) = line else { return };
                let message: Value = serde_json::from_str(&line).unwrap();
                if message["method"] == "tools/call" {
                    calls.push(message["id"].clone());
                    sent.0.lock().unwrap().push(message["params"].clone());
                }
                to_server.write_all(format!("{line}\n").as_bytes()).await.unwrap();
            }
            line = from_server.next_line() => {
                let Ok(Some(line)) = line else { return };
                let message: Value = serde_json::from_str(&line).unwrap();
                if message["method"].is_null() && calls.contains(&message["id"]) {
                    match fault {
                        Fault::None => {}
                        Fault::LosesTheAnswer => return,
                        Fault::KeepsTheAnswer => continue,
                    }
                }
                if to_client.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }
}
