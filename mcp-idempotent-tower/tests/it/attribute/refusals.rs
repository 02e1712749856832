//! The exact JSON of what a caller is refused with.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{Idempotency, IdempotencyBuilder, MemoryStore, RefusalForm, idempotent};
use rmcp::{ErrorData, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};

use crate::wire::{Wire, take_marker};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    amount: i64,
}

#[derive(Clone)]
struct Billing {
    idempotency: Idempotency<MemoryStore>,
    charges: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Billing {
    fn new(
        set_up: impl FnOnce(IdempotencyBuilder<MemoryStore>) -> IdempotencyBuilder<MemoryStore>,
    ) -> Self {
        let builder = Idempotency::builder("billing", MemoryStore::new()).with_one_caller();
        Self {
            idempotency: set_up(builder).build().unwrap(),
            charges: Arc::default(),
        }
    }

    #[idempotent(key = required, on_error = in_doubt, key_argument = "key")]
    #[tool]
    async fn charge(&self, Parameters(charge): Parameters<Charge>) -> Result<String, ErrorData> {
        self.charges.fetch_add(1, Ordering::SeqCst);
        if charge.amount < 0 {
            return Err(ErrorData::internal_error("the bank did not answer", None));
        }
        Ok(format!("charged {}", charge.amount))
    }
}

fn charge(amount: i64, meta: Value) -> Value {
    json!({ "name": "charge", "arguments": { "amount": amount }, "_meta": meta })
}

#[tokio::test]
async fn a_call_without_the_required_key_is_refused() {
    let server = Billing::new(|builder| builder);
    let mut wire = Wire::connect(server.clone());
    insta::assert_json_snapshot!(wire.call(charge(1, json!({}))).await);
    assert_eq!(server.charges.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_key_of_a_wrong_form_is_refused() {
    let server = Billing::new(|builder| builder);
    let mut wire = Wire::connect(server.clone());
    let mut answers = Vec::new();
    for key in [
        json!(""),
        json!("k".repeat(256)),
        json!(17),
        json!("tab\tinside"),
        json!("\u{85}"),
        json!(null),
        json!({ "key": "k" }),
    ] {
        answers.push(
            wire.call(charge(1, json!({ "idempotency-key": key })))
                .await,
        );
    }
    insta::assert_json_snapshot!(answers);
    assert_eq!(server.charges.load(Ordering::SeqCst), 0);
    let longest = json!({ "idempotency-key": "k".repeat(255) });
    let answer = wire.call(charge(1, longest)).await;
    assert_eq!(answer["result"]["content"][0]["text"], "charged 1");
}

#[tokio::test]
async fn two_different_keys_on_one_call_are_refused() {
    let server = Billing::new(|builder| builder);
    let mut wire = Wire::connect(server.clone());
    let mut params = charge(1, json!({ "idempotency-key": "a" }));
    params["arguments"]["key"] = "b".into();
    insta::assert_json_snapshot!(wire.call(params).await);
    assert_eq!(server.charges.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_key_used_for_another_call_is_a_conflict() {
    let server = Billing::new(|builder| builder);
    let mut wire = Wire::connect(server.clone());
    let key = json!({ "idempotency-key": "k" });
    wire.call(charge(1, key.clone())).await;
    insta::assert_json_snapshot!(wire.call(charge(2, key)).await);
    assert_eq!(server.charges.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_call_in_doubt_is_refused_and_not_repeated() {
    let server = Billing::new(|builder| builder);
    let mut wire = Wire::connect(server.clone());
    let key = json!({ "idempotency-key": "k" });
    let first = wire.call(charge(-1, key.clone())).await;
    assert_eq!(first["error"]["message"], "the bank did not answer");
    insta::assert_json_snapshot!(wire.call(charge(-1, key)).await);
    assert_eq!(server.charges.load(Ordering::SeqCst), 1);
}

fn by_argument(amount: i64) -> Value {
    json!({ "name": "charge", "arguments": { "amount": amount, "key": "k" } })
}

fn by_meta(amount: i64) -> Value {
    charge(amount, json!({ "idempotency-key": "k" }))
}

#[tokio::test]
async fn a_refusal_goes_to_whoever_made_the_key() {
    let mut wire = Wire::connect(Billing::new(|builder| builder));
    wire.call(by_argument(1)).await;
    insta::assert_json_snapshot!([wire.call(by_argument(2)).await, wire.call(by_meta(2)).await]);
}

#[tokio::test]
async fn refusals_have_one_form_where_the_server_says_so() {
    for (form, member) in [
        (RefusalForm::Error, "error"),
        (RefusalForm::Result, "result"),
    ] {
        let server = Billing::new(|builder| builder.with_refusal_form(form));
        let mut wire = Wire::connect(server.clone());
        let refused = [by_argument(2), by_meta(2), charge(1, json!({}))];
        wire.call(by_argument(1)).await;
        for params in refused {
            let answer = wire.call(params).await;
            assert!(answer[member].is_object(), "{form:?}: {answer}");
            assert_eq!(answer.as_object().unwrap().len(), 1, "{answer}");
        }
        assert_eq!(server.charges.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_replay_says_so_to_the_model_where_the_server_says_so() {
    let mut wire = Wire::connect(Billing::new(|builder| builder.with_announced_replays(true)));
    let key = json!({ "idempotency-key": "k" });
    let first = wire.call(charge(1, key.clone())).await;
    let mut replay = wire.call(charge(1, key)).await;
    assert!(take_marker(&mut replay));
    let content = replay["result"]["content"].as_array_mut().unwrap();
    let notice = content.pop().unwrap();
    assert_eq!(replay, first);
    let notice = notice["text"].as_str().unwrap();
    assert!(
        notice.starts_with("This call was already executed at 20"),
        "{notice}"
    );
}
