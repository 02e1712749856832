//! Calls that ask back, driven by rmcp's own client.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use mcp_idempotent_tests::{
    client::{CallExt as _, call},
    database::{Database as _, Postgres, Stored, effect},
};
use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, LayeredServer, OnError, ServerExt as _, ToolService, Tx,
    layer::Rule, store::postgres::PostgresStore, wire,
};
use rmcp::{
    ClientHandler, ErrorData, RoleClient, ServerHandler, ServiceExt as _,
    handler::server::tool::{InputResponses, RequestState},
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientConfig,
        ContentBlock, ElicitRequestParams, ElicitResult, ElicitationAction, Implementation,
        InputRequiredResult, ProtocolVersion,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, RequestContext, RunningService, ServiceError,
    },
    tool, tool_handler, tool_router,
};
use serde_json::{Value, json};

use crate::world::{engine, within_patience};

/// What is asked, one question in each round.
const QUESTIONS: [&str; 3] = ["From where?", "To where?", "When?"];

/// A server that has three questions before it books.
#[derive(Debug, Clone, Default)]
struct Agency {
    asked: Arc<AtomicU32>,
    booked: Arc<AtomicU32>,
}

impl Agency {
    /// The next question, or the journey where all are answered. The state is the answers so far.
    fn next(
        &self,
        state: Option<String>,
        responses: Option<BTreeMap<String, Value>>,
    ) -> Result<Vec<String>, InputRequiredResult> {
        let mut answers: Vec<String> =
            state.map_or_else(Vec::new, |state| serde_json::from_str(&state).unwrap());
        if let Some(responses) = responses {
            let content = &responses["question"]["content"];
            answers.push(content["answer"].as_str().unwrap().to_owned());
        }
        let Some(question) = QUESTIONS.get(answers.len()) else {
            return Ok(answers);
        };
        self.asked.fetch_add(1, Ordering::SeqCst);
        let requests = json!({ "question": { "method": "elicitation/create", "params": {
            "mode": "form", "message": question, "requestedSchema": {
                "type": "object", "properties": { "answer": { "type": "string" } },
            },
        }}});
        Err(InputRequiredResult::new(
            Some(serde_json::from_value(requests).unwrap()),
            Some(json!(answers).to_string()),
        ))
    }

    fn book(&self, answers: &[String]) -> CallToolResponse {
        let number = self.booked.fetch_add(1, Ordering::SeqCst) + 1;
        let text = format!("{number}: {}", answers.join(", "));
        CallToolResult::success(vec![ContentBlock::text(text)]).into()
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    fn booked(&self) -> u32 {
        self.booked.load(Ordering::SeqCst)
    }

    fn behind(
        &self,
        idempotency: &Idempotency<PostgresStore>,
    ) -> LayeredServer<Self, impl ToolService> {
        let layer = IdempotencyLayer::builder(idempotency.clone(), Rule::transaction())
            .with_tool("book_by_mail", Rule::lease(OnError::InDoubt))
            .build()
            .unwrap();
        self.clone().idempotent(layer)
    }
}

#[tool_router]
impl Agency {
    /// Books in the database. It notes each question there, too.
    #[tool]
    async fn book_here(
        &self,
        mut tx: Tx<PostgresStore>,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
    ) -> Result<CallToolResponse, ErrorData> {
        let next = self.next(state, responses);
        let note = match &next {
            Ok(_) => "booked",
            Err(_) => "asked",
        };
        effect::<Postgres>(&mut tx, note).await.unwrap();
        match next {
            Ok(answers) => Ok(self.book(&answers)),
            Err(question) => Ok(question.into()),
        }
    }

    /// Books elsewhere.
    #[tool]
    async fn book_by_mail(
        &self,
        RequestState(state): RequestState,
        InputResponses(responses): InputResponses,
    ) -> Result<CallToolResponse, ErrorData> {
        match self.next(state, responses) {
            Ok(answers) => Ok(self.book(&answers)),
            Err(question) => Ok(question.into()),
        }
    }
}

#[tool_handler]
impl ServerHandler for Agency {}

/// Answers what it is asked, and leaves at a question of its choice.
#[derive(Debug, Clone)]
struct Traveller {
    questions: Arc<Mutex<Vec<String>>>,
    leaves_at: Option<&'static str>,
}

impl ClientHandler for Traveller {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Err(ErrorData::invalid_params("not a form", None));
        };
        if self.leaves_at == Some(&*message) {
            return Err(ErrorData::internal_error("left", None));
        }
        let answer = format!("answer to {message}");
        self.questions.lock().unwrap().push(message);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({ "answer": answer })))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("tests", "0"))
    }
}

impl Traveller {
    /// A new client of `agency`, who knows nothing of what others were asked.
    async fn visits(
        leaves_at: Option<&'static str>,
        agency: LayeredServer<Agency, impl ToolService>,
    ) -> RunningService<RoleClient, Self> {
        let (here, there) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            if let Ok(running) = agency.serve(there).await {
                drop(running.waiting().await);
            }
        });
        let lifecycle = ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        };
        let traveller = Self {
            questions: Arc::default(),
            leaves_at,
        };
        traveller
            .serve_with_lifecycle(here, lifecycle)
            .await
            .unwrap()
    }
}

async fn journey(
    client: &RunningService<RoleClient, Traveller>,
    tool: &str,
) -> Result<CallToolResult, ServiceError> {
    let params: CallToolRequestParams = call(tool, json!({})).with_key("k");
    within_patience(client.call_tool(params)).await
}

fn text(result: &CallToolResult) -> String {
    let json = json!(result);
    json["content"][0]["text"].as_str().unwrap().to_owned()
}

fn is_replay(result: &CallToolResult) -> bool {
    json!(result)["_meta"].get(wire::REPLAYED).is_some()
}

const BOOKED: &str = "1: answer to From where?, answer to To where?, answer to When?";

#[tokio::test]
async fn several_rounds_have_one_effect_and_one_record() {
    for tool in ["book_here", "book_by_mail"] {
        let database = Postgres::create().await;
        let idempotency = engine(database.store(4)).build().unwrap();
        let agency = Agency::default();
        let client = Traveller::visits(None, agency.behind(&idempotency)).await;
        let first = journey(&client, tool).await.unwrap();
        assert_eq!(text(&first), BOOKED);
        assert!(!is_replay(&first));
        assert_eq!(*client.service().questions.lock().unwrap(), QUESTIONS);
        assert_eq!(agency.booked(), 1);
        assert_eq!(database.records().await, [Stored::Completed]);
        // What the rounds wrote that only asked is not there.
        if tool == "book_here" {
            assert_eq!(database.effects().await, ["booked"]);
        }

        // A client that lost the last answer begins anew, and is asked nothing.
        let client = Traveller::visits(None, agency.behind(&idempotency)).await;
        let retry = journey(&client, tool).await.unwrap();
        assert_eq!(text(&retry), BOOKED);
        assert!(is_replay(&retry));
        assert!(client.service().questions.lock().unwrap().is_empty());
        assert_eq!((agency.asked(), agency.booked()), (3, 1));
    }
}

#[tokio::test]
async fn a_client_that_leaves_between_rounds_leaves_nothing_and_may_begin_anew() {
    for tool in ["book_here", "book_by_mail"] {
        for (left_at, asked) in [(QUESTIONS[0], 1), (QUESTIONS[2], 3)] {
            let database = Postgres::create().await;
            let idempotency = engine(database.store(4)).build().unwrap();
            let agency = Agency::default();
            let client = Traveller::visits(Some(left_at), agency.behind(&idempotency)).await;
            journey(&client, tool).await.unwrap_err();
            assert_eq!((agency.asked(), agency.booked()), (asked, 0));
            // In lease mode the key is free, and its next attempt passes the same keys on.
            let left: &[Stored] = match tool {
                "book_here" => &[],
                _ => &[Stored::Released],
            };
            assert_eq!(database.records().await, left);
            assert!(database.effects().await.is_empty());

            // Another instance of the server goes on as well as the first would.
            let idempotency = engine(database.store(4)).build().unwrap();
            let client = Traveller::visits(None, agency.behind(&idempotency)).await;
            let result = journey(&client, tool).await.unwrap();
            assert_eq!(text(&result), BOOKED);
            assert_eq!(*client.service().questions.lock().unwrap(), QUESTIONS);
            assert_eq!((agency.asked(), agency.booked()), (asked + 3, 1));
            assert_eq!(database.records().await, [Stored::Completed]);
        }
    }
}
