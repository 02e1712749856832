//! A client of the server, after its handshake.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    door::{Caller, Door, Wire},
    told::Told,
};

pub(super) struct Session {
    wire: Arc<dyn Wire>,
    requests: AtomicU64,
    patience: Duration,
}

/// A request that was sent. Dropping it gives up on the answer.
pub(super) struct Sent {
    id: u64,
    answer: JoinHandle<Result<Value, String>>,
    patience: Duration,
}

impl Session {
    /// # Errors
    ///
    /// Says why there is no session.
    pub(super) async fn open(
        door: &dyn Door,
        caller: Caller,
        patience: Duration,
    ) -> Result<Self, String> {
        let session = Self {
            wire: door.open(caller).await?,
            requests: AtomicU64::new(0),
            patience,
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "mcp-idempotent check", "version": env!("CARGO_PKG_VERSION") },
        });
        session.ask("initialize", params).await?;
        session.tell("notifications/initialized", None).await?;
        Ok(session)
    }

    /// # Errors
    ///
    /// There is no answer, or it is an error.
    pub(super) async fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        let mut answer = self.request(method, params).answer().await?;
        match answer.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(format!("{method} was answered with {answer}")),
        }
    }

    /// Sends a call, and does not wait.
    pub(super) fn call(&self, params: Value) -> Sent {
        self.request("tools/call", params)
    }

    fn request(&self, method: &str, params: Value) -> Sent {
        let id = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let sent = self.wire.send(message);
        Sent {
            id,
            patience: self.patience,
            answer: tokio::spawn(async move {
                let answer = sent.await?;
                answer.ok_or_else(|| "there was no answer".to_owned())
            }),
        }
    }

    /// Tells the server that a call is cancelled.
    pub(super) async fn cancel(&self, sent: &Sent) {
        let params = json!({ "requestId": sent.id, "reason": "the user changed their mind" });
        // The server may be gone by now.
        let _ = self.tell("notifications/cancelled", Some(params)).await;
    }

    pub(super) async fn kill(self) {
        self.wire.kill().await;
    }

    async fn tell(&self, method: &str, params: Option<Value>) -> Result<(), String> {
        let mut message = json!({ "jsonrpc": "2.0", "method": method });
        if let Some(params) = params {
            message["params"] = params;
        }
        self.wire.send(message).await.map(|_| ())
    }
}

impl Sent {
    /// What the caller was told. A caller that waits for too long is told nothing.
    pub(super) async fn told(self) -> Told {
        match self.answer().await {
            Ok(answer) => Told::of(&answer),
            Err(why) => Told::Nothing(why),
        }
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_finished()
    }

    /// Waits for the answer, for this long at most.
    pub(super) async fn is_answered_within(&self, limit: Duration) -> bool {
        const REST: Duration = Duration::from_millis(5);
        let began = Instant::now();
        while !self.is_answered() && began.elapsed() < limit {
            sleep(REST).await;
        }
        self.is_answered()
    }

    async fn answer(mut self) -> Result<Value, String> {
        match timeout(self.patience, &mut self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {:?}", self.patience)),
        }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.answer.abort();
    }
}
