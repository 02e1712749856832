//! What an attribute says of a tool's policy, and what is refused of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, InDoubt, KeyRequirement, MemoryStore, OnDoubt, OnError, OnErrorResult, OnExpired,
    Policy, PolicyOverride, RotatedKeys, Secret, Store, Verdict, Wait, idempotent,
    layer::{IdempotencyLayer, Rule},
};
use rmcp::{ServerHandler, handler::server::wrapper::Parameters, tool, tool_router};
use serde_json::{Value, json};

use crate::wire::{Wire, take_marker};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Traced {
    trace: Option<String>,
}

struct Server<S> {
    idempotency: Idempotency<S>,
    runs: Arc<AtomicU32>,
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            runs: Arc::clone(&self.runs),
        }
    }
}

impl<S: Store> Server<S> {
    fn new(idempotency: Idempotency<S>) -> Self {
        Self {
            idempotency,
            runs: Arc::default(),
        }
    }

    fn run(&self) -> String {
        format!("run {}", self.runs.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

#[tool_router]
impl<S: Store> Server<S> {
    #[idempotent(on_error = release)]
    #[tool]
    fn says_nothing(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = release, lease = "10s")]
    #[tool]
    fn has_a_short_lease(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = release, heartbeat = "50s")]
    #[tool]
    fn has_a_slow_heart(&self) -> String {
        self.run()
    }

    /// As long as there is, and longer than records in doubt are kept by default.
    #[idempotent(on_error = release, retention = "36525days")]
    #[tool]
    fn keeps_for_long(&self) -> String {
        self.run()
    }

    #[idempotent(on_error = release, max_result_bytes = 4)]
    #[tool]
    fn keeps_little(&self) -> String {
        self.run()
    }

    #[idempotent(
        key = required, key_argument = "/key", ignore("trace"), also_known_as = "before", retention = "1s", window = "2s",
        rotated_keys = join, rotated_keys_window = "9s",
        wait = reject, on_error = release, on_error_result = record, on_expired = refuse, tombstone = "3s", lease = "100s",
        heartbeat = "5s", on_doubt = verify(Self::find_out), verify_timeout = "6s",
        in_doubt_retention = "7s", max_result_bytes = 8,
        run_unprotected_when_store_is_unavailable = true
    )]
    #[tool]
    fn says_everything(&self, _traced: Parameters<Traced>) -> String {
        self.run()
    }

    async fn find_out(&self, _: InDoubt<'_>) -> Verdict {
        Verdict::Unknown
    }
}

#[rmcp::tool_handler]
impl<S: Store> ServerHandler for Server<S> {}

fn keyed(name: &str) -> Value {
    json!({ "name": name, "arguments": {}, "_meta": { "idempotency-key": "k" } })
}

#[test]
fn an_attribute_can_say_everything_that_a_policy_has() {
    // Without `..`, so that a new field is not forgotten.
    let expected = PolicyOverride {
        key: Some(KeyRequirement::Required),
        key_argument: Some("/key".into()),
        ignored: Some(vec!["/trace".into()].into()),
        also_known_as: Some("before".into()),
        retention: Some(seconds(1)),
        window: Some(seconds(2)),
        wait: Some(Wait::Reject),
        rotated_keys: Some(RotatedKeys::Join),
        rotated_keys_window: Some(seconds(9)),
        on_error: Some(OnError::Release),
        on_error_result: Some(OnErrorResult::Record),
        on_expired: Some(OnExpired::Refuse),
        tombstone: Some(seconds(3)),
        lease: Some(seconds(100)),
        heartbeat: Some(seconds(5)),
        on_doubt: Some(OnDoubt::Verify),
        verify_timeout: Some(seconds(6)),
        in_doubt_retention: Some(seconds(7)),
        // It is a rule of transaction mode.
        transaction_timeout: None,
        max_result_bytes: Some(8),
        run_unprotected_when_store_is_unavailable: Some(true),
    };
    let options = Server::<MemoryStore>::SAYS_EVERYTHING_IDEMPOTENT;
    assert_eq!(options.policy, expected);
    let nothing = Server::<MemoryStore>::SAYS_NOTHING_IDEMPOTENT;
    assert_eq!(nothing.policy.on_error, Some(OnError::Release));
    assert_eq!(
        PolicyOverride {
            on_error: None,
            ..nothing.policy.clone()
        },
        PolicyOverride::NONE
    );
}

/// A call would need two guards.
#[test]
fn rotated_keys_are_refused_at_start_up_while_a_secret_is_replaced() {
    let replacing = |rotated_keys| {
        let mut policy = Policy::default();
        policy.rotated_keys = rotated_keys;
        Idempotency::builder("policy", MemoryStore::new())
            .with_one_caller()
            .with_secret(Secret::new("0123456789abcdef").unwrap())
            .with_previous_secret(None)
            .with_policy(policy)
            .build()
    };
    let says_why = |error: String| assert!(error.contains("secret"), "{error}");
    says_why(replacing(RotatedKeys::Refuse).unwrap_err().to_string());
    let idempotency = replacing(RotatedKeys::Allow).unwrap();
    let rule = || Rule::lease(OnError::Release).with_rotated_keys(RotatedKeys::Join);
    let of_all = IdempotencyLayer::new(idempotency.clone(), rule());
    says_why(of_all.unwrap_err().to_string());
    let of_one = IdempotencyLayer::builder(idempotency, Rule::untouched()).with_tool("pay", rule());
    says_why(of_one.build().unwrap_err().to_string());
}

#[test]
fn tools_that_can_work_pass_the_check() {
    let idempotency = Idempotency::for_stdio("policy", MemoryStore::new()).unwrap();
    let tools = Server::<MemoryStore>::tool_router().list_all();
    assert_eq!(tools.len(), 6);
    idempotency.check_tools(&tools).unwrap();
}

#[derive(Clone)]
struct Misspelt;

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Note {
    text: String,
}

#[tool_router]
impl Misspelt {
    fn none(&self) -> &Idempotency<MemoryStore> {
        unreachable!("no tool of this server is called")
    }

    #[idempotent(on_error = release, ignore("txt"), idempotency = self.none())]
    #[tool]
    fn ignores(&self, _note: Parameters<Note>) {}

    #[idempotent(on_error = release, key_argument = "/note/key", idempotency = self.none())]
    #[tool]
    fn reads_a_key(&self, _note: Parameters<Note>) {}

    #[idempotent(on_error = release, ignore("text"), key_argument = "key", idempotency = self.none())]
    #[tool]
    fn is_right(&self, _note: Parameters<Note>) {}

    #[idempotent(on_error = release, ignore("/a~1b~01/deep"), idempotency = self.none())]
    #[tool]
    fn escapes(&self, _odd: Parameters<Odd>) {}
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Odd {
    #[serde(rename = "a/b~1")]
    odd: Vec<String>,
}

#[test]
fn an_option_that_names_no_argument_of_its_tool_is_found_at_the_start() {
    let idempotency = Idempotency::for_stdio("policy", MemoryStore::new()).unwrap();
    let tools = Misspelt::tool_router();
    let check = |name| {
        idempotency
            .check_tools(tools.get(name))
            .map_err(|it| it.to_string())
    };
    assert_eq!(
        check("ignores").unwrap_err(),
        "the tool `ignores` has no argument `/txt`, which its options name"
    );
    assert_eq!(
        check("reads_a_key").unwrap_err(),
        "the tool `reads_a_key` has no argument `/note/key`, which its options name"
    );
    check("is_right").unwrap();
    check("escapes").unwrap();
}

#[test]
fn an_argument_that_a_schema_leaves_open_is_not_taken_for_a_mistake() {
    let idempotency = Idempotency::for_stdio("policy", MemoryStore::new()).unwrap();
    let mut tool = Misspelt::tool_router().get("ignores").unwrap().clone();
    for (schema, is_open) in [
        (json!({}), false),
        (json!({ "properties": { "text": {} } }), false),
        (json!({ "additionalProperties": false }), false),
        (json!({ "properties": { "txt": {} } }), true),
        (json!({ "additionalProperties": true }), true),
        (
            json!({ "additionalProperties": { "type": "string" } }),
            true,
        ),
        (json!({ "$ref": "#/$defs/note" }), true),
        (json!({ "allOf": [] }), true),
        (json!({ "anyOf": [] }), true),
        (json!({ "oneOf": [] }), true),
        (json!({ "patternProperties": {} }), true),
    ] {
        tool.input_schema = Arc::new(schema.as_object().unwrap().clone());
        assert_eq!(
            idempotency.check_tools([&tool]).is_ok(),
            is_open,
            "{schema}"
        );
    }
}

#[test]
fn a_heartbeat_that_the_servers_lease_cannot_have_is_refused_and_its_tool_named() {
    let mut policy = Policy::default();
    policy.lease = seconds(60);
    let idempotency = Idempotency::builder("policy", MemoryStore::new())
        .with_one_caller()
        .with_policy(policy)
        .build()
        .unwrap();
    let tools = Server::<MemoryStore>::tool_router().list_all();
    assert_eq!(
        idempotency.check_tools(&tools).unwrap_err().to_string(),
        "the tool `has_a_slow_heart`: the heartbeat is 50s; it must be more than zero and at most half of the lease, 60s"
    );
}

#[tokio::test]
async fn a_tool_may_keep_its_results_for_a_hundred_years() {
    let server = Server::new(Idempotency::for_stdio("policy", MemoryStore::new()).unwrap());
    let mut wire = Wire::connect(server);
    let first = wire.call(keyed("keeps_for_long")).await;
    assert_eq!(first["result"]["content"][0]["text"], "run 1");
    let mut replay = wire.call(keyed("keeps_for_long")).await;
    assert!(take_marker(&mut replay));
    assert_eq!(replay, first);
}

#[tokio::test]
async fn a_tool_may_say_how_large_a_result_is_kept() {
    let server = Server::new(Idempotency::for_stdio("policy", MemoryStore::new()).unwrap());
    let mut wire = Wire::connect(server);
    let first = wire.call(keyed("keeps_little")).await;
    assert_eq!(first["result"]["content"][0]["text"], "run 1");
    let retry = wire.call(keyed("keeps_little")).await;
    assert_eq!(
        retry["error"]["data"]["type"],
        "idempotency_result_too_large"
    );
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use mcp_idempotent_tower::SqliteStore;

    use super::*;

    async fn idempotency() -> (tempfile::NamedTempFile, Idempotency<SqliteStore>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let store = SqliteStore::open(file.path()).await.unwrap();
        (file, Idempotency::for_stdio("policy", store).unwrap())
    }

    #[tokio::test]
    async fn a_lease_that_the_store_cannot_have_is_refused_at_the_start_and_its_tool_named() {
        let (_file, idempotency) = idempotency().await;
        let tools = Server::<SqliteStore>::tool_router().list_all();
        assert_eq!(
            idempotency.check_tools(&tools).unwrap_err().to_string(),
            "the tool `has_a_short_lease`: the lease is 10s; with this store it must be more than three times the limit on transactions, 30s"
        );
    }

    #[tokio::test]
    async fn without_that_check_each_call_of_the_tool_is_refused_and_other_tools_work() {
        let (_file, idempotency) = idempotency().await;
        let server = Server::new(idempotency);
        let runs = Arc::clone(&server.runs);
        let mut wire = Wire::connect(server);
        for _ in 0..2 {
            let answer = wire.call(keyed("has_a_short_lease")).await;
            let data = &answer["error"]["data"];
            assert_eq!(data["type"], "idempotency_misconfigured", "{answer}");
            assert_eq!(data["outcome"], "not_committed");
            assert_eq!(data["action"], "ask_operator");
        }
        assert_eq!(runs.load(Ordering::SeqCst), 0);
        let answer = wire.call(keyed("says_nothing")).await;
        assert_eq!(answer["result"]["content"][0]["text"], "run 1");
    }
}
