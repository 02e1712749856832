//! Multi round-trip calls: rounds record nothing, the key has one final record.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, MemoryStore, RecordQuery, RecordStatus, idempotent};
use rmcp::{
    handler::server::tool::RequestState,
    model::{CallToolResponse, CallToolResult, ContentBlock, InputRequiredResult},
    tool, tool_router,
};
use serde_json::{Value, json};

use crate::wire::{Wire, take_marker};

#[derive(Clone)]
struct Confirming {
    idempotency: Idempotency<MemoryStore>,
    rounds: Arc<AtomicU32>,
    effects: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Confirming {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("confirming", MemoryStore::new()).unwrap(),
            rounds: Arc::default(),
            effects: Arc::default(),
        }
    }

    /// Asks back once.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn confirm(&self, RequestState(state): RequestState) -> CallToolResponse {
        if state.is_none() {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            return InputRequiredResult::from_request_state("asked").into();
        }
        let number = self.effects.fetch_add(1, Ordering::SeqCst) + 1;
        CallToolResult::success(vec![ContentBlock::text(number.to_string())]).into()
    }
}

fn round(state: Option<&str>) -> Value {
    let mut params = json!({ "name": "confirm", "_meta": { "idempotency-key": "one" } });
    if let Some(state) = state {
        params["requestState"] = state.into();
    }
    params
}

#[tokio::test]
async fn a_round_that_asks_back_records_nothing() {
    let server = Confirming::new();
    let mut wire = Wire::connect(server.clone());
    for _ in 0..2 {
        let asked = wire.call(round(None)).await;
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
        assert_eq!(asked["result"]["requestState"], "asked", "{asked}");
    }
    assert_eq!(server.rounds.load(Ordering::SeqCst), 2);
    // The key is free; all that is kept is where the next attempt comes from.
    let records = server.idempotency.list(&RecordQuery::default()).await;
    let records = records.unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].status, RecordStatus::Released);
}

#[tokio::test]
async fn every_round_gets_the_final_result_once_there_is_one() {
    let server = Confirming::new();
    let mut wire = Wire::connect(server.clone());
    wire.call(round(None)).await;
    let first = wire.call(round(Some("asked"))).await;
    assert_eq!(first["result"]["content"][0]["text"], "1", "{first}");
    // A client that lost the answer may repeat the last round, or start anew.
    for state in [Some("asked"), None] {
        let mut again = wire.call(round(state)).await;
        assert!(take_marker(&mut again), "{again}");
        assert_eq!(again, first);
    }
    assert_eq!(server.effects.load(Ordering::SeqCst), 1);
    assert_eq!(server.rounds.load(Ordering::SeqCst), 1);
}
