//! Whether a handler ran is what was seen at its door, and nothing that an answer says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_tower::{NotExecuted, OnError, ServerExt as _, ToolCall, layer::Rule};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock},
    service::RequestContext,
};
use serde_json::{Value, json};
use tower::{BoxError, Service, layer::layer_fn, load_shed::error::Overloaded};

use super::{hello, key, layer, lease, refusal};
use crate::client::{Client, call, connect, params};

/// Acts, and answers then as it is told. It lists no tools.
#[derive(Clone)]
struct Actor {
    acted: Arc<AtomicU32>,
    answers: fn(u32) -> Result<CallToolResponse, ErrorData>,
}

impl Actor {
    fn answering(answers: fn(u32) -> Result<CallToolResponse, ErrorData>) -> Self {
        Self {
            acted: Arc::default(),
            answers,
        }
    }

    fn acted(&self) -> u32 {
        self.acted.load(Ordering::SeqCst)
    }
}

impl ServerHandler for Actor {
    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        (self.answers)(self.acted.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

fn success() -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text("done")]).into())
}

async fn act(client: &Client) -> Value {
    call(client, params("act", hello(), key("k"))).await
}

#[tokio::test]
async fn a_result_that_reads_like_rmcps_parse_error_frees_no_key() {
    let actor = Actor::answering(|_| {
        let text = "failed to deserialize parameters: missing field `text`";
        Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
    });
    let client = connect(actor.clone().idempotent(layer(lease()))).await;
    let first = act(&client).await;
    assert_eq!(first["result"]["isError"], true, "{first}");
    let again = act(&client).await;
    assert_eq!(again["result"]["isError"], true, "{again}");
    assert_eq!(actor.acted(), 1);
}

#[tokio::test]
async fn an_error_that_reads_like_a_tool_that_was_not_found_frees_no_key() {
    for answers in [
        (|_| Err(ErrorData::invalid_params("tool not found", None))) as fn(u32) -> _,
        |_| {
            Err(ErrorData::method_not_found::<
                rmcp::model::CallToolRequestMethod,
            >())
        },
    ] {
        let actor = Actor::answering(answers);
        let client = connect(actor.clone().idempotent(layer(lease()))).await;
        act(&client).await;
        let again = act(&client).await;
        assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
        assert_eq!(actor.acted(), 1);
    }
}

/// What a service below the layer does with a call.
#[derive(Clone, Copy)]
enum Does {
    Refuse,
    CallAndRefuse,
    /// As a retry layer does: with a clone, after an error.
    CallAgain,
    /// As a retry layer above a limit does.
    CallAgainOnceAndRefuse,
}

/// Says with the type of its error that the handler was not called.
#[derive(Clone)]
struct Between<T> {
    below: T,
    does: Does,
}

impl<T> Service<ToolCall> for Between<T>
where
    T: Service<ToolCall, Response = CallToolResponse, Error = ErrorData> + Clone + Send + 'static,
    T::Future: Send,
{
    type Response = CallToolResponse;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<CallToolResponse, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.below.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let Self { mut below, does } = self.clone();
        Box::pin(async move {
            match does {
                Does::Refuse => {}
                Does::CallAndRefuse => drop(below.call(call).await),
                Does::CallAgain => {
                    let first = below.call(call.clone()).await;
                    return match first {
                        Ok(answer) => Ok(answer),
                        Err(_) => Ok(below.call(call).await?),
                    };
                }
                Does::CallAgainOnceAndRefuse => {
                    drop(below.call(call.clone()).await);
                    drop(below.call(call).await);
                }
            }
            Err(Overloaded::new().into())
        })
    }
}

fn between<T>(does: Does) -> impl tower::Layer<T, Service = Between<T>> + Clone {
    layer_fn(move |below| Between { below, does })
}

#[tokio::test]
async fn a_load_limit_that_refused_before_the_handler_frees_the_key() {
    let actor = Actor::answering(|_| success());
    let server = actor.clone().layered(between(Does::Refuse));
    let client = connect(server.idempotent(layer(lease()))).await;
    for _ in 0..2 {
        let answer = act(&client).await;
        assert_eq!(refusal(&answer), ("server_overloaded", "not_committed"));
    }
    assert_eq!(actor.acted(), 0);
}

#[tokio::test]
async fn a_load_limit_that_refused_after_the_handler_acted_frees_no_key() {
    for does in [Does::CallAndRefuse, Does::CallAgainOnceAndRefuse] {
        let actor = Actor::answering(|_| Err(ErrorData::internal_error("no", None)));
        let server = actor.clone().layered(between(does));
        let release = Rule::lease(OnError::Release);
        let client = connect(server.idempotent(layer(release))).await;
        assert_eq!(refusal(&act(&client).await), ("call_failed", "unknown"));
        let acted = actor.acted();
        let again = act(&client).await;
        assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
        assert_eq!(actor.acted(), acted);
    }
}

#[tokio::test]
async fn a_client_is_not_told_that_nothing_ran_where_a_limit_above_the_handler_refused_late() {
    let actor = Actor::answering(|_| success());
    let client = connect(actor.layered(between(Does::CallAndRefuse))).await;
    assert_eq!(refusal(&act(&client).await), ("call_failed", "unknown"));
}

#[tokio::test]
async fn a_service_in_the_place_of_the_handler_frees_no_key_with_the_type_of_its_error() {
    /// Acts, and says that it did not.
    #[derive(Clone)]
    struct Instead(Actor);

    impl Service<ToolCall> for Instead {
        type Response = CallToolResponse;
        type Error = BoxError;
        type Future = std::future::Ready<Result<CallToolResponse, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: ToolCall) -> Self::Future {
            self.0.acted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(Overloaded::new().into()))
        }
    }

    let actor = Actor::answering(|_| success());
    let instead = Instead(actor.clone());
    let server = actor.clone().layered(layer_fn(move |_| instead.clone()));
    let client = connect(server.idempotent(layer(lease()))).await;
    assert_eq!(refusal(&act(&client).await), ("call_failed", "unknown"));
    let again = act(&client).await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
    assert_eq!(actor.acted(), 1);
}

#[tokio::test]
async fn a_repeat_that_did_nothing_says_nothing_of_the_attempt_before_it() {
    let actor = Actor::answering(|acted| {
        let error = ErrorData::internal_error("no", None);
        Err(match acted {
            1 => error,
            _ => NotExecuted::mark(error),
        })
    });
    let server = actor.clone().layered(between(Does::CallAgain));
    let client = connect(server.idempotent(layer(lease()))).await;
    assert_eq!(act(&client).await["error"]["message"], "no");
    let again = act(&client).await;
    assert_eq!(refusal(&again), ("idempotency_outcome_unknown", "unknown"));
    assert_eq!(actor.acted(), 2);
}

#[tokio::test]
async fn attempts_that_all_did_nothing_free_the_key() {
    let actor = Actor::answering(|_| Err(NotExecuted::mark(ErrorData::internal_error("no", None))));
    let server = actor.clone().layered(between(Does::CallAgain));
    let client = connect(server.idempotent(layer(lease()))).await;
    for calls in 1..=2 {
        let answer = act(&client).await;
        assert_eq!(answer["error"], json!({ "code": -32603, "message": "no" }));
        assert_eq!(actor.acted(), 2 * calls);
    }
}
