//! Calls in doubt under the layer, and the attempt of handlers that know nothing of it.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use mcp_idempotent_tower::{
    Attempt, IdempotencyLayer, MemoryStore, OnError, ServerExt, Verdict, layer::Rule,
};
use rmcp::{
    ErrorData, ServerHandler,
    handler::server::{tool::ToolRouter, wrapper::Parameters},
    tool, tool_handler, tool_router,
};
use serde_json::Value;

use super::{Message, hello, idempotency, key, refusal};
use crate::client::{Client, call, connect, params};

/// Acts, and fails then as long as it is told to.
#[derive(Clone)]
struct Post {
    fails: Arc<AtomicU32>,
    keys: Arc<Mutex<Vec<String>>>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Post {
    fn failing(times: u32) -> Self {
        Self {
            fails: Arc::new(AtomicU32::new(times)),
            keys: Arc::default(),
            tool_router: Self::tool_router(),
        }
    }

    fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().clone()
    }

    /// Sends a message.
    #[tool]
    async fn send(
        &self,
        attempt: Attempt,
        Parameters(message): Parameters<Message>,
    ) -> Result<String, ErrorData> {
        attempt.ensure_current().await?;
        let key = attempt.downstream_key("send").to_string();
        assert_eq!(Attempt::current()?.downstream_key("send").as_str(), key);
        self.keys.lock().unwrap().push(key);
        let left = self
            .fails
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        match left {
            Ok(_) => Err(ErrorData::internal_error("timed out", None)),
            Err(_) => Ok(message.text),
        }
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for Post {}

async fn behind(post: &Post, rule: Rule<MemoryStore>) -> Client {
    let layer = IdempotencyLayer::new(idempotency(), rule).unwrap();
    connect(post.clone().idempotent(layer)).await
}

fn in_doubt() -> Rule<MemoryStore> {
    Rule::lease(OnError::InDoubt)
}

async fn send(client: &Client) -> Value {
    call(client, params("send", hello(), key("k"))).await
}

#[tokio::test]
async fn a_call_in_doubt_runs_again_where_the_rule_says_so() {
    let post = Post::failing(1);
    let client = behind(&post, in_doubt().with_rerun_in_doubt()).await;
    assert_eq!(send(&client).await["error"]["message"], "timed out");
    for _ in 0..2 {
        let answer = send(&client).await;
        assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
    }
    let keys = post.keys();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_call_in_doubt_is_verified_where_the_rule_says_so() {
    let post = Post::failing(1);
    let sent = post.clone();
    let rule = in_doubt().with_verify(move |call| {
        let sent = sent.keys();
        Box::pin(async move {
            let message: Message = call.parameters().unwrap();
            assert_eq!((call.tool(), call.attempts()), ("send", 1));
            if sent.contains(&call.downstream_key("send").to_string()) {
                Verdict::committed(format!("{}, as they say", message.text))
            } else {
                Verdict::Unknown
            }
        })
    });
    let client = behind(&post, rule).await;
    send(&client).await;
    for _ in 0..2 {
        let answer = send(&client).await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, "hello, as they say", "{answer}");
    }
    assert_eq!(post.keys().len(), 1);
}

#[tokio::test]
async fn a_call_in_doubt_stays_so_where_the_rule_says_nothing() {
    let post = Post::failing(1);
    let client = behind(&post, in_doubt()).await;
    send(&client).await;
    let answer = send(&client).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_outcome_unknown", "unknown"),
        "{answer}"
    );
    assert_eq!(post.keys().len(), 1);
}

#[tokio::test]
async fn a_call_without_a_key_has_an_attempt_too() {
    let post = Post::failing(0);
    let client = behind(&post, in_doubt()).await;
    for _ in 0..2 {
        let answer = call(&client, params("send", hello(), Value::Null)).await;
        assert_eq!(answer["result"]["content"][0]["text"], "hello", "{answer}");
    }
    let keys = post.keys();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
}

#[tokio::test]
async fn an_attempt_outside_of_lease_mode_is_an_error_that_says_so() {
    let post = Post::failing(0);
    let client = behind(&post, Rule::untouched()).await;
    let answer = call(&client, params("send", hello(), key("k"))).await;
    assert_eq!(
        refusal(&answer),
        ("idempotency_misconfigured", "not_committed"),
        "{answer}"
    );
    assert_eq!(post.keys().len(), 0);
}

#[test]
fn rules_that_contradict_each_other_are_not_built() {
    let built = |rule| IdempotencyLayer::new(idempotency(), rule).err();
    let minute = std::time::Duration::from_secs(60);
    let message = |rule| built(rule).unwrap().to_string();
    assert!(built(in_doubt().with_lease(minute).with_heartbeat(minute / 3)).is_none());
    assert!(message(in_doubt().with_lease(minute).with_heartbeat(minute)).contains("heartbeat"));
    assert!(message(in_doubt().with_in_doubt_retention(minute)).contains("in doubt"));
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_rule_in_transaction_mode_has_nothing_to_say_of_calls_in_doubt() {
    use mcp_idempotent_tower::{Idempotency, SqliteStore};
    let file = tempfile::NamedTempFile::new().unwrap();
    let store = SqliteStore::open(file.path()).await.unwrap();
    let idempotency = Idempotency::for_stdio("mailer", store).unwrap();
    let rule = Rule::transaction().with_rerun_in_doubt();
    let error = IdempotencyLayer::new(idempotency, rule).unwrap_err();
    assert!(error.to_string().contains("in doubt"), "{error}");
}

#[test]
fn a_servers_policy_has_no_function_to_verify_with() {
    use mcp_idempotent_tower::{Idempotency, OnDoubt, Policy};
    let mut policy = Policy::default();
    policy.on_doubt = OnDoubt::Verify;
    let built = Idempotency::builder("mailer", MemoryStore::new())
        .with_one_caller()
        .with_policy(policy)
        .build();
    assert!(built.unwrap_err().to_string().contains("Verify"));
}
