//! Every call of a tool is counted, those too that the engine never sees.

use mcp_idempotent_tower::{Idempotency, MemoryStore, idempotent, telemetry};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use rmcp::{tool, tool_router};
use serde_json::json;

use crate::client::{call, connect, params};

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<MemoryStore>,
}

#[tool_router(server_handler)]
impl Billing {
    #[idempotent(on_error = release, key = required)]
    #[tool]
    async fn charge(&self) -> String {
        "charged".into()
    }
}

#[tokio::test]
async fn a_call_its_retry_and_calls_without_a_valid_key_are_counted() {
    let recorder = DebuggingRecorder::new();
    let _local = metrics::set_default_local_recorder(&recorder);
    let client = connect(Billing {
        idempotency: Idempotency::for_stdio("billing", MemoryStore::new()).unwrap(),
    })
    .await;
    for meta in [
        json!({ "idempotency-key": "one" }),
        json!({ "idempotency-key": "one" }),
        json!({ "idempotency-key": "" }),
        json!({}),
    ] {
        call(&client, params("charge", json!({}), meta)).await;
    }
    let mut counted: Vec<_> = recorder
        .snapshotter()
        .snapshot()
        .into_vec()
        .into_iter()
        .filter(|(key, ..)| key.key().name() == telemetry::CALLS)
        .map(|(key, _, _, value)| {
            let labels = key.key().labels();
            let labels: Vec<_> = labels.map(|label| label.value().to_owned()).collect();
            assert_eq!(labels[..2], ["billing", "charge"]);
            assert_eq!(value, DebugValue::Counter(1));
            labels[2].clone()
        })
        .collect();
    counted.sort();
    assert_eq!(
        counted,
        ["executed", "key_invalid", "key_required", "replayed"]
    );
}
