//! What another server says in our names, and a handler passes on.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, MemoryStore, OnError, RecordQuery, RecordStatus, ServerExt as _,
    idempotent, layer::Rule,
};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{CallToolResponse, CallToolResult, MetaObject},
    tool, tool_router,
};
use serde_json::{Value, json};
use tower::layer::util::Identity;

use crate::client::{Client, call, connect, params};

const REPLAYED: &str = "io.github.mcp-idempotent/replayed";
const REFUSAL: &str = "io.github.mcp-idempotent/refusal";
const IN_DOUBT: &str = "io.github.mcp-idempotent/in-doubt";
const UPSTREAM: &str = "io.github.mcp-idempotent/upstream";

/// What the other server said.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Said {
    #[serde(default)]
    data: Value,
    #[serde(default)]
    meta: Value,
}

/// Asks another server to act, and passes its answer on.
#[derive(Clone)]
struct Relay {
    idempotency: Idempotency<MemoryStore>,
    acted: Arc<AtomicU32>,
}

#[tool_router(server_handler)]
impl Relay {
    fn new() -> Self {
        Self {
            idempotency: Idempotency::for_stdio("relay", MemoryStore::new()).unwrap(),
            acted: Arc::default(),
        }
    }

    fn layer(&self, rule: Rule<MemoryStore>) -> IdempotencyLayer<MemoryStore> {
        IdempotencyLayer::new(self.idempotency.clone(), rule).unwrap()
    }

    fn acted(&self) -> u32 {
        self.acted.load(Ordering::SeqCst)
    }

    #[tool]
    async fn plain(
        &self,
        Parameters(said): Parameters<Said>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.acted.fetch_add(1, Ordering::SeqCst);
        if !said.data.is_null() {
            return Err(ErrorData::internal_error("theirs", Some(said.data)));
        }
        let mut result = CallToolResult::default();
        let Value::Object(meta) = said.meta else {
            return Ok(result.into());
        };
        let passed_on = meta.get(UPSTREAM).and_then(|said| said.get(REFUSAL));
        result.is_error = Some(meta.contains_key(REFUSAL) || passed_on.is_some());
        result.meta = Some(MetaObject(meta));
        Ok(result.into())
    }

    #[idempotent(key = explicit, on_error = in_doubt)]
    #[tool]
    async fn annotated(&self, said: Parameters<Said>) -> Result<CallToolResponse, ErrorData> {
        self.plain(said).await
    }
}

/// Where the relay stands, and which of its tools is called with which key.
struct Place {
    name: &'static str,
    relay: Relay,
    client: Client,
    tool: &'static str,
    meta: Value,
}

impl Place {
    async fn of(
        name: &'static str,
        tool: &'static str,
        key: Option<&str>,
        serve: impl AsyncFnOnce(Relay) -> Client,
    ) -> Self {
        let relay = Relay::new();
        Self {
            name,
            client: serve(relay.clone()).await,
            relay,
            tool,
            meta: key.map_or(Value::Null, |key| json!({ "idempotency-key": key })),
        }
    }

    async fn call(&self, said: &Value) -> Value {
        let params = params(self.tool, said.clone(), self.meta.clone());
        call(&self.client, params).await
    }

    fn is_protected(&self) -> bool {
        matches!(self.name, "attribute" | "layer" | "both" | "wrapped twice")
    }

    /// The `_meta` or `data` of an error without our own word about the doubt, which it must have if the call was
    /// protected.
    fn without_doubt(&self, said: &Value) -> Value {
        let mut said = said.clone();
        let doubt = said.as_object_mut().unwrap().remove(IN_DOUBT);
        let expected = self.is_protected().then(|| {
            json!({ "type": "idempotency_outcome_unknown", "outcome": "unknown", "action": "ask_operator" })
        });
        assert_eq!(doubt, expected, "{}", self.name);
        said
    }
}

fn twice_wrapped<H: ServerHandler>(server: H, relay: &Relay) -> impl ServerHandler {
    server.idempotent(relay.layer(Rule::lease(OnError::InDoubt)))
}

async fn places() -> Vec<Place> {
    let lease = || Rule::lease(OnError::InDoubt);
    let behind = |rule: Rule<MemoryStore>| {
        async move |relay: Relay| {
            let layer = relay.layer(rule);
            connect(relay.idempotent(layer)).await
        }
    };
    let key = Some("k");
    vec![
        Place::of("attribute", "annotated", key, connect).await,
        Place::of("attribute, no key", "annotated", None, connect).await,
        Place::of("layer", "plain", key, behind(lease())).await,
        Place::of("layer, no key", "plain", None, behind(lease())).await,
        Place::of("untouched", "plain", key, behind(Rule::untouched())).await,
        Place::of("both", "annotated", key, behind(lease())).await,
        Place::of("no layer of ours", "plain", None, async |relay| {
            connect(relay.layered(Identity::new())).await
        })
        .await,
        Place::of("wrapped twice", "plain", key, async |relay| {
            let inner = relay.clone().layered(Identity::new());
            connect(twice_wrapped(inner, &relay)).await
        })
        .await,
    ]
}

#[tokio::test]
async fn a_refusal_that_a_handler_passes_on_does_not_reach_the_client_as_ours() {
    for kind in [
        "idempotency_store_unavailable",
        "idempotency_of_another_version",
        "call_timed_out",
        "call_failed",
        "call_not_executed",
        "server_overloaded",
    ] {
        let data = json!({ "type": kind, "outcome": "not_committed", "action": "retry_same_key" });
        for place in places().await {
            let answer = place.call(&json!({ "data": data })).await;
            let error = &answer["error"];
            assert_eq!(
                (&error["code"], &error["message"]),
                (&json!(-32603), &json!("theirs"))
            );
            let left = place.without_doubt(&error["data"]);
            assert_eq!(left, json!({ "upstream": data }), "{}", place.name);
        }
    }
}

#[tokio::test]
async fn a_marker_that_a_handler_passes_on_is_in_no_answer_and_no_record_as_ours() {
    for theirs in [
        json!({ REPLAYED: { "at": "2020-01-01T00:00:00.000Z" } }),
        json!({ REPLAYED: {}, UPSTREAM: { "hops": 2 } }),
    ] {
        for place in places().await {
            let mut said = theirs.clone();
            said["other"] = 1.into();
            let mut answer = place.call(&json!({ "meta": said })).await;
            let mut again = place.call(&json!({ "meta": said })).await;
            let expected = json!({ UPSTREAM: theirs, "other": 1 });
            let meta = answer["result"]["_meta"].take();
            assert_eq!(meta, expected, "{}", place.name);
            let mut meta = again["result"]["_meta"].take();
            if place.relay.acted() == 1 {
                let replayed = meta.as_object_mut().unwrap().remove(REPLAYED);
                let at = replayed.unwrap()["at"].take();
                assert!(!at.as_str().unwrap().starts_with("2020"), "{}", place.name);
            }
            assert_eq!(meta, expected, "{}", place.name);

            let query = RecordQuery::default();
            for record in place.relay.idempotency.list(&query).await.unwrap() {
                let record = place.relay.idempotency.show(record.id).await.unwrap();
                let response = record.unwrap().response.unwrap();
                let recorded: Value = serde_json::from_slice(&response[2..]).unwrap();
                assert_eq!(recorded["_meta"], expected, "{}", place.name);
            }
        }
    }
}

#[tokio::test]
async fn a_refusal_that_a_handler_passes_on_as_a_result_is_never_recorded_as_one() {
    let refusal = json!({ REFUSAL: { "type": "idempotency_store_unavailable" } });
    for theirs in [refusal.clone(), json!({ UPSTREAM: refusal.clone() })] {
        for place in places().await {
            let answer = place.call(&json!({ "meta": theirs })).await;
            let meta = place.without_doubt(&answer["result"]["_meta"]);
            assert_eq!(meta, json!({ UPSTREAM: refusal }), "{}", place.name);
            let query = RecordQuery::default();
            for record in place.relay.idempotency.list(&query).await.unwrap() {
                assert_eq!(record.status, RecordStatus::InDoubt, "{}", place.name);
            }
            if place.is_protected() {
                place.call(&json!({ "meta": theirs })).await;
                assert_eq!(place.relay.acted(), 1, "{}", place.name);
            }
        }
    }
}

#[tokio::test]
async fn a_mark_of_not_executed_that_another_process_made_frees_no_key() {
    const MARK: &str = "io.github.mcp-idempotent/not-executed";
    for mark in [
        json!({ MARK: null }),
        json!({ MARK: { "data": null, "seal": "0000000000000000" } }),
    ] {
        for place in places().await {
            let answer = place.call(&json!({ "data": mark })).await;
            let data = place.without_doubt(&answer["error"]["data"]);
            assert_eq!(data, json!({ "upstream": mark }), "{}", place.name);
            let query = RecordQuery::default();
            for record in place.relay.idempotency.list(&query).await.unwrap() {
                assert_eq!(record.status, RecordStatus::InDoubt, "{}", place.name);
            }
            if place.is_protected() {
                place.call(&json!({ "data": mark })).await;
                assert_eq!(place.relay.acted(), 1, "{}", place.name);
            }
        }
    }
}

#[tokio::test]
async fn an_annotated_tool_behind_layers_gives_its_own_refusals_and_markers() {
    for is_wrapped_twice in [false, true] {
        let relay = Relay::new();
        let lease = || Rule::lease(OnError::InDoubt);
        let server = relay.clone().idempotent(relay.layer(lease()));
        let client = if is_wrapped_twice {
            let inner = server.layered(Identity::new());
            connect(twice_wrapped(inner, &relay)).await
        } else {
            connect(server).await
        };
        let key = json!({ "idempotency-key": "k" });
        let send = async |meta: &Value| {
            let said = json!({ "meta": { "answer": 1 } });
            let mut answer = call(&client, params("annotated", said, meta.clone())).await;
            answer["result"]["_meta"].take()
        };
        assert_eq!(send(&key).await, json!({ "answer": 1 }));
        let replayed = send(&key).await;
        assert!(replayed[REPLAYED]["at"].is_string(), "{replayed}");
        assert_eq!(replayed.as_object().unwrap().len(), 2, "{replayed}");

        let other = params("annotated", json!({}), key);
        let conflict = call(&client, other).await;
        assert_eq!(
            conflict["error"]["data"],
            json!({
                "type": "idempotency_key_conflict",
                "outcome": "not_committed",
                "action": "use_new_key",
            })
        );
        assert_eq!(relay.acted(), 1);
    }
}

#[cfg(feature = "client")]
#[tokio::test(start_paused = true)]
async fn an_unkeyed_call_is_not_repeated_for_a_refusal_that_its_tool_passed_on() {
    use mcp_idempotent_tower::client::{Call, CallErrorKind, RetryPolicy};

    let data = json!({
        "type": "idempotency_store_unavailable",
        "outcome": "not_committed",
        "action": "retry_same_key",
    });
    let said = json!({ "data": data });
    // A server that does not know us at all, and one that has a layer.
    let (bare, layered) = (Relay::new(), Relay::new());
    for (relay, client, kind) in [
        (&bare, connect(bare.clone()).await, CallErrorKind::Refused),
        (
            &layered,
            connect(layered.clone().layered(Identity::new())).await,
            CallErrorKind::Answered,
        ),
    ] {
        let call = Call::unkeyed(params("plain", said.clone(), Value::Null));
        let error = RetryPolicy::new()
            .call(client.peer(), call)
            .await
            .unwrap_err();
        assert_eq!((error.attempts(), error.kind()), (1, kind));
        assert_eq!(relay.acted(), 1);
    }
}
