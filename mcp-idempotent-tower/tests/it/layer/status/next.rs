//! What a status request says to do next is what a call would be told.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, InDoubt, MemoryStore, OnDoubt, OnError, OnExpired, Policy,
    ServerExt as _, Verdict, Wait, idempotent, layer::Rule,
};
use rmcp::{ErrorData, handler::server::tool::ToolRouter, tool, tool_handler, tool_router};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{super::key, status};
use crate::client::{Client, call, connect, params};

/// What a handler does next.
#[derive(Debug, Clone, Copy)]
enum Does {
    Answers,
    AnswersAtLength,
    FailsAfterItActed,
    Waits,
}

/// The same tool through both doors, under each rule for calls in doubt.
#[derive(Clone)]
struct Probe {
    idempotency: Idempotency<MemoryStore>,
    does: Arc<Mutex<Does>>,
    begun: Arc<Semaphore>,
    tool_router: ToolRouter<Self>,
}

#[tool_router]
impl Probe {
    #[idempotent(on_error = in_doubt, on_doubt = fail)]
    #[tool]
    async fn annotated_fail(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn annotated_rerun(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[idempotent(on_error = in_doubt, on_doubt = verify(Self::find_out))]
    #[tool]
    async fn annotated_verify(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn annotated_as_the_server_says(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[tool]
    async fn layered_rerun(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[tool]
    async fn layered_verify(&self) -> Result<String, ErrorData> {
        self.act().await
    }

    #[tool]
    async fn layered_as_the_server_says(&self) -> Result<String, ErrorData> {
        self.act().await
    }
}

#[tool_handler(router = self.tool_router)]
impl rmcp::ServerHandler for Probe {}

impl Probe {
    fn new(server: OnDoubt) -> Self {
        let mut policy = Policy::default();
        policy.wait = Wait::Reject;
        policy.retention = Duration::from_secs(60);
        policy.on_expired = OnExpired::Refuse;
        policy.tombstone = Duration::from_secs(600);
        policy.max_result_bytes = 200;
        policy.on_doubt = server;
        Self {
            idempotency: Idempotency::builder("probe", MemoryStore::new())
                .with_one_caller()
                .with_policy(policy)
                .build()
                .unwrap(),
            does: Arc::new(Mutex::new(Does::Answers)),
            begun: Arc::new(Semaphore::new(0)),
            tool_router: Self::tool_router(),
        }
    }

    async fn connect(&self) -> Client {
        let rule = || Rule::lease(OnError::InDoubt);
        let layer = IdempotencyLayer::builder(self.idempotency.clone(), rule())
            .with_tool("layered_rerun", rule().with_rerun_in_doubt())
            .with_tool(
                "layered_verify",
                rule().with_verify(|_| Box::pin(async { Verdict::Unknown })),
            )
            .build()
            .unwrap();
        connect(self.clone().idempotent(layer)).await
    }

    async fn act(&self) -> Result<String, ErrorData> {
        let does = *self.does.lock().unwrap();
        match does {
            Does::Answers => Ok("done".into()),
            Does::AnswersAtLength => Ok("done ".repeat(100)),
            Does::FailsAfterItActed => Err(ErrorData::internal_error("timed out", None)),
            Does::Waits => {
                self.begun.add_permits(1);
                std::future::pending().await
            }
        }
    }

    async fn find_out(&self, _: InDoubt<'_>) -> Verdict {
        Verdict::Unknown
    }
}

/// Brings the record of a call with this key into a state, and names the state.
async fn bring(probe: &Probe, client: &Arc<Client>, tool: &'static str, does: Option<Does>) {
    let Some(does) = does else { return };
    *probe.does.lock().unwrap() = does;
    let made = {
        let client = Arc::clone(client);
        async move { call(&client, params(tool, json!({}), key("k"))).await }
    };
    if let Does::Waits = does {
        tokio::spawn(made);
        probe.begun.acquire().await.unwrap().forget();
    } else {
        made.await;
    }
    *probe.does.lock().unwrap() = Does::Answers;
}

/// What `next` has to be, after what a call with the same key got.
fn told(answer: &Value) -> &str {
    let action = &answer["error"]["data"]["action"];
    match action.as_str() {
        Some(action) => action,
        // It was answered, so sending it with the same key was right.
        None if answer["result"].is_object() => "retry_same_key",
        None => panic!("neither refused nor answered: {answer}"),
    }
}

#[tokio::test]
async fn what_to_do_next_is_what_a_call_would_be_told() {
    let states = [
        ("not_seen", None, false),
        ("in_progress", Some(Does::Waits), false),
        ("completed", Some(Does::Answers), false),
        ("completed", Some(Does::AnswersAtLength), false),
        ("in_doubt", Some(Does::FailsAfterItActed), false),
        ("expired", Some(Does::Answers), true),
    ];
    let fail = [
        "annotated_fail",
        "annotated_as_the_server_says",
        "layered_as_the_server_says",
    ];
    let other = [
        "annotated_rerun",
        "annotated_verify",
        "layered_rerun",
        "layered_verify",
    ];
    let as_the_server_says = ["annotated_as_the_server_says", "layered_as_the_server_says"];
    for (server, tools, in_doubt) in [
        (OnDoubt::Fail, &fail[..], "ask_operator"),
        (OnDoubt::Fail, &other[..], "retry_same_key"),
        (OnDoubt::Rerun, &as_the_server_says[..], "retry_same_key"),
        (OnDoubt::Rerun, &fail[..1], "ask_operator"),
    ] {
        for &tool in tools {
            for (state, does, ages) in states {
                let case = format!("{tool} under {server:?}, {state} after {does:?}");
                let probe = Probe::new(server);
                let client = Arc::new(probe.connect().await);
                bring(&probe, &client, tool, does).await;
                if ages {
                    tokio::time::pause();
                    tokio::time::advance(Duration::from_secs(120)).await;
                    tokio::time::resume();
                }
                let asked = json!({ "key": "k", "tool": tool, "arguments": {} });
                let found = status(&client, asked).await;
                assert_eq!(found["state"], state, "{case}: {found}");
                if state == "in_doubt" {
                    assert_eq!(found["next"], in_doubt, "{case}: {found}");
                }
                let answer = call(&client, params(tool, json!({}), key("k"))).await;
                assert_eq!(found["next"], told(&answer), "{case}: {found}, {answer}");
            }
        }
    }
}

#[cfg(feature = "sqlite")]
mod in_transaction_mode {
    use mcp_idempotent_tower::{SqliteStore, Tx};
    use sqlx::SqliteConnection;
    use tempfile::TempDir;

    use super::*;

    /// Tools that end their own transaction.
    #[derive(Clone)]
    struct Rude {
        idempotency: Idempotency<SqliteStore>,
        tool_router: ToolRouter<Self>,
    }

    #[tool_router]
    impl Rude {
        #[idempotent]
        #[tool]
        async fn annotated(&self, tx: &mut SqliteConnection) -> String {
            commit(tx).await
        }

        #[tool]
        async fn layered(&self, mut tx: Tx<SqliteStore>) -> String {
            commit(&mut tx).await
        }
    }

    async fn commit(tx: &mut SqliteConnection) -> String {
        sqlx::query("COMMIT").execute(tx).await.unwrap();
        "committed".into()
    }

    #[tool_handler(router = self.tool_router)]
    impl rmcp::ServerHandler for Rude {}

    #[tokio::test]
    async fn a_servers_rule_for_calls_in_doubt_is_not_one_of_transaction_mode() {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("rude.db");
        let mut policy = Policy::default();
        policy.on_doubt = OnDoubt::Rerun;
        let idempotency = Idempotency::builder("rude", SqliteStore::open(path).await.unwrap())
            .with_one_caller()
            .with_policy(policy)
            .build()
            .unwrap();
        let layer = IdempotencyLayer::new(idempotency.clone(), Rule::transaction()).unwrap();
        let rude = Rude {
            idempotency,
            tool_router: Rude::tool_router(),
        };
        let client = connect(rude.idempotent(layer)).await;
        for tool in ["annotated", "layered"] {
            for _ in 0..2 {
                let answer = call(&client, params(tool, json!({}), key(tool))).await;
                assert_eq!(told(&answer), "ask_operator", "{tool}: {answer}");
            }
            let asked = json!({ "key": tool, "tool": tool, "arguments": {} });
            let found = status(&client, asked).await;
            assert_eq!(found["state"], "in_doubt", "{tool}: {found}");
            assert_eq!(found["next"], "ask_operator", "{tool}: {found}");
        }
    }
}
