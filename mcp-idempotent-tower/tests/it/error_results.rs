//! What a result with `isError` means for the record in lease mode, through both doors.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, KeyRequirement, MemoryStore, NotExecuted, OnError,
    OnErrorResult, Policy, RotatedKeys, ServerExt as _, idempotent, layer::Rule, wire,
};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    model::{CallToolResult, ContentBlock},
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};

use crate::client::{Client, call, connect, params, refusal};

/// How a call fails.
#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Failing {
    text: String,
}

#[derive(Clone)]
struct Bank {
    idempotency: Idempotency<MemoryStore>,
    runs: Arc<AtomicU32>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Bank {
    fn new(policy: Policy) -> Self {
        let builder = Idempotency::builder("bank", MemoryStore::new()).with_one_caller();
        Self {
            idempotency: builder.with_policy(policy).build().unwrap(),
            runs: Arc::default(),
            tool_router: Self::tool_router(),
        }
    }

    fn fail(&self, Failing { text }: Failing) -> Result<String, String> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Err(text)
    }

    fn classify(result: &CallToolResult) -> OnErrorResult {
        match result.content[0].as_text().unwrap().text.as_str() {
            "declined" => OnErrorResult::Record,
            "busy" => OnErrorResult::Release,
            "lost" => OnErrorResult::InDoubt,
            other => panic!("no classification of {other}"),
        }
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    fn in_doubt(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = release)]
    #[tool]
    fn release(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = release, on_error_result = record)]
    #[tool]
    fn result_record(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = in_doubt, on_error_result = release)]
    #[tool]
    fn result_release(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = release, on_error_result = in_doubt)]
    #[tool]
    fn result_in_doubt(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = in_doubt, on_error_result = classify(Self::classify))]
    #[tool]
    fn result_classified(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[tool]
    fn plain(&self, Parameters(how): Parameters<Failing>) -> Result<String, String> {
        self.fail(how)
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    fn closed(&self) -> Result<String, CallToolResult> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Err(closed())
    }

    #[tool]
    fn plain_closed(&self) -> CallToolResult {
        self.runs.fetch_add(1, Ordering::SeqCst);
        closed()
    }

    #[tool]
    fn marked_success(&self) -> CallToolResult {
        self.runs.fetch_add(1, Ordering::SeqCst);
        NotExecuted::mark(CallToolResult::success(vec![ContentBlock::text("done")]))
    }
}

fn closed() -> CallToolResult {
    NotExecuted::mark(CallToolResult::error(vec![ContentBlock::text("closed")]))
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Bank {}

/// What a retry of a call that failed gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    GetsTheResult,
    Runs,
    IsInDoubt,
}

use Retry::{GetsTheResult, IsInDoubt, Runs};

const KEYED: bool = true;
const KEYLESS: bool = false;

async fn retry(bank: &Bank, client: &Client, tool: &'static str, keyed: bool, text: &str) -> Retry {
    let before = bank.runs.load(Ordering::SeqCst);
    let key = json!({ "idempotency-key": format!("{tool} {text}") });
    let meta = if keyed { key } else { Value::Null };
    let send = async || call(client, params(tool, json!({ "text": text }), meta.clone())).await;
    let first = send().await;
    let failed = json!({ "type": "text", "text": text });
    assert_eq!(first["result"]["content"][0], failed, "{tool}: {first}");
    let left = first["result"]["_meta"][wire::IN_DOUBT].clone();
    let says_so = first["result"]["content"].as_array().unwrap().len() > 1;
    let again = send().await;
    let runs = bank.runs.load(Ordering::SeqCst) - before;
    let retry = match (runs, again["result"]["content"] == json!([failed])) {
        (1, true) => GetsTheResult,
        (2, true) => Runs,
        (1, false) => {
            let expected = ("idempotency_outcome_unknown", "unknown");
            assert_eq!(refusal(&again), expected, "{tool}");
            let data = match &again["error"]["data"] {
                Value::Null => &again["result"]["_meta"][wire::REFUSAL],
                data => data,
            };
            // The first caller has heard it too, and a model reads it.
            assert_eq!((&left, says_so), (data, !keyed), "{tool}");
            return IsInDoubt;
        }
        other => panic!("{tool}: {other:?}, {again}"),
    };
    assert_eq!((&left, says_so), (&Value::Null, false), "{tool}");
    retry
}

#[tokio::test]
async fn an_attribute_says_what_an_error_result_means() {
    let bank = Bank::new(Policy::default());
    let client = connect(bank.clone()).await;
    for (tool, keyed, text, expected) in [
        ("in_doubt", KEYED, "declined", GetsTheResult),
        ("in_doubt", KEYLESS, "declined", IsInDoubt),
        ("release", KEYED, "declined", Runs),
        ("release", KEYLESS, "declined", Runs),
        ("result_record", KEYED, "declined", GetsTheResult),
        ("result_record", KEYLESS, "declined", GetsTheResult),
        ("result_release", KEYED, "declined", Runs),
        ("result_release", KEYLESS, "declined", Runs),
        ("result_in_doubt", KEYED, "declined", IsInDoubt),
        ("result_in_doubt", KEYLESS, "declined", IsInDoubt),
        ("result_classified", KEYED, "declined", GetsTheResult),
        ("result_classified", KEYLESS, "declined", GetsTheResult),
        ("result_classified", KEYED, "busy", Runs),
        ("result_classified", KEYED, "lost", IsInDoubt),
    ] {
        let retried = retry(&bank, &client, tool, keyed, text).await;
        assert_eq!(retried, expected, "{tool}, keyed: {keyed}, {text}");
    }
}

#[tokio::test]
async fn the_caller_of_a_call_left_in_doubt_is_told_of_the_equal_call_too() {
    let mut policy = Policy::default();
    policy.rotated_keys = RotatedKeys::Report;
    let bank = Bank::new(policy);
    let client = connect(bank.clone()).await;
    for (key, is_told) in [("first", false), ("second", true)] {
        let meta = json!({ "idempotency-key": key });
        let arguments = json!({ "text": "declined" });
        let answer = call(&client, params("result_in_doubt", arguments, meta)).await;
        let meta = &answer["result"]["_meta"];
        assert!(meta.get(wire::IN_DOUBT).is_some(), "{answer}");
        assert_eq!(meta.get(wire::ROTATED_KEY).is_some(), is_told, "{answer}");
    }
    assert_eq!(bank.runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_rule_says_what_an_error_result_means() {
    let lease = |on_error| Rule::lease(on_error).with_key(KeyRequirement::Derived);
    let said = |on_error, said| lease(on_error).with_on_error_result(said);
    let classified = || lease(OnError::InDoubt).with_error_results_classified(Bank::classify);
    for (rule, text, keyed, keyless) in [
        (
            lease(OnError::InDoubt),
            "declined",
            GetsTheResult,
            IsInDoubt,
        ),
        (lease(OnError::Release), "declined", Runs, Runs),
        (
            said(OnError::Release, OnErrorResult::Record),
            "declined",
            GetsTheResult,
            GetsTheResult,
        ),
        (
            said(OnError::InDoubt, OnErrorResult::Release),
            "declined",
            Runs,
            Runs,
        ),
        (
            said(OnError::Release, OnErrorResult::InDoubt),
            "declined",
            IsInDoubt,
            IsInDoubt,
        ),
        (classified(), "declined", GetsTheResult, GetsTheResult),
        (classified(), "busy", Runs, Runs),
        (classified(), "lost", IsInDoubt, IsInDoubt),
    ] {
        let bank = Bank::new(Policy::default());
        let what = format!("{rule:?}, {text}");
        let layer = IdempotencyLayer::new(bank.idempotency.clone(), rule).unwrap();
        let client = connect(bank.clone().idempotent(layer)).await;
        for (is_keyed, expected) in [(KEYED, keyed), (KEYLESS, keyless)] {
            let retried = retry(&bank, &client, "plain", is_keyed, text).await;
            assert_eq!(retried, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn a_servers_policy_says_what_an_error_result_means_where_its_tools_do_not() {
    let mut policy = Policy::default();
    policy.on_error_result = Some(OnErrorResult::Release);
    let bank = Bank::new(policy);
    let client = connect(bank.clone()).await;
    for (tool, expected) in [
        ("in_doubt", Runs),
        ("result_record", GetsTheResult),
        ("result_classified", GetsTheResult),
    ] {
        assert_eq!(
            retry(&bank, &client, tool, KEYED, "declined").await,
            expected
        );
    }
}

#[tokio::test]
async fn a_classifier_that_panics_is_answered_and_leaves_the_call_in_doubt() {
    let bank = Bank::new(Policy::default());
    let rule = Rule::lease(OnError::InDoubt).with_error_results_classified(Bank::classify);
    let layer = IdempotencyLayer::new(bank.idempotency.clone(), rule).unwrap();
    let client = connect(bank.clone().idempotent(layer)).await;
    for tool in ["result_classified", "plain"] {
        let key = json!({ "idempotency-key": tool });
        for kind in [
            "idempotency_handler_panicked",
            "idempotency_outcome_unknown",
        ] {
            let params = params(tool, json!({ "text": "unheard of" }), key.clone());
            let answer = call(&client, params).await;
            assert_eq!(answer["error"]["data"]["type"], kind, "{tool}: {answer}");
        }
    }
    assert_eq!(bank.runs.load(Ordering::SeqCst), 2);
}

#[test]
fn a_classifier_is_refused_where_errors_are_not_its_business() {
    let idempotency = Bank::new(Policy::default()).idempotency;
    let rule = Rule::untouched().with_error_results_classified(Bank::classify);
    let refused = IdempotencyLayer::new(idempotency, rule).unwrap_err();
    assert!(refused.to_string().contains("lease mode"), "{refused}");
}

#[tokio::test]
async fn a_result_marked_as_not_executed_frees_the_key_and_is_sent_without_the_mark() {
    let bank = Bank::new(Policy::default());
    let rule = Rule::lease(OnError::InDoubt);
    let layer = IdempotencyLayer::new(bank.idempotency.clone(), rule).unwrap();
    let client = connect(bank.clone().idempotent(layer)).await;
    let send = async |tool: &'static str| {
        let key = json!({ "idempotency-key": tool });
        call(&client, params(tool, Value::Null, key)).await
    };
    for (tool, runs) in [("closed", [1, 2]), ("plain_closed", [3, 4])] {
        for run in runs {
            let answer = send(tool).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert!(answer["result"]["_meta"].is_null(), "{answer}");
            assert_eq!(bank.runs.load(Ordering::SeqCst), run, "{tool}");
        }
    }
    // A success happened, whatever is put on it.
    for _ in 0..2 {
        let answer = send("marked_success").await;
        assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
        assert_eq!(bank.runs.load(Ordering::SeqCst), 5);
    }
}

#[cfg(feature = "sqlite")]
mod in_transaction {
    use mcp_idempotent_tower::SqliteStore;
    use sqlx::SqliteConnection;

    use super::*;

    #[derive(Clone)]
    struct Ledger {
        idempotency: Idempotency<SqliteStore>,
        runs: Arc<AtomicU32>,
    }

    #[tool_router(server_handler)]
    impl Ledger {
        #[idempotent]
        #[tool]
        fn closed(&self, _tx: &mut SqliteConnection) -> Result<CallToolResult, ErrorData> {
            self.runs.fetch_add(1, Ordering::SeqCst);
            Ok(super::closed())
        }
    }

    #[tokio::test]
    async fn a_result_marked_as_not_executed_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("ledger.db"))
            .await
            .unwrap();
        let ledger = Ledger {
            idempotency: Idempotency::for_stdio("ledger", store).unwrap(),
            runs: Arc::default(),
        };
        let client = connect(ledger.clone()).await;
        for run in [1, 2] {
            let answer = crate::client::keyed(&client, "closed", Value::Null).await;
            assert_eq!(answer["result"]["isError"], true, "{answer}");
            assert_eq!(ledger.runs.load(Ordering::SeqCst), run);
        }
    }
}
