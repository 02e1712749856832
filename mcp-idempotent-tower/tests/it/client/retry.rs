//! What is repeated, what is not, and what the caller is told.

use mcp_idempotent_tower::{
    IdempotencyKey,
    client::{
        Attempt, Call, CallError, CallErrorKind, RetryPolicy, WithIdempotencyKey as _, replayed_at,
    },
    core::{Action, CommitOutcome},
};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, Tool};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    link::{self, Fault, Sent, connector},
    params,
    server::Server,
};

fn tool(name: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(name)
}

fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key).unwrap()
}

fn result(answer: Result<CallToolResponse, CallError>) -> CallToolResult {
    match answer.unwrap() {
        CallToolResponse::Complete(result) => result,
        other => panic!("no result: {other:?}"),
    }
}

async fn listed(server: &Server, name: &str) -> Tool {
    let client = super::connect(server.clone()).await;
    let tools = client.list_all_tools().await.unwrap();
    tools.into_iter().find(|tool| tool.name == name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_fetched_with_the_same_key_and_the_tool_runs_once() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(
        &server,
        [Fault::LosesTheAnswer, Fault::LosesTheAnswer],
        &sent,
    );
    let call = Call::keyed(tool("charge"));
    let key = call.key().unwrap().to_owned();
    let result = result(RetryPolicy::new().call(connect, call).await);
    assert!(replayed_at(&result).is_some());
    assert_eq!(result.content[0].as_text().unwrap().text, "1 for 0");
    assert_eq!(server.runs(), 1);
    assert_eq!(sent.keys(), [json!(key), json!(key), json!(key)]);
}

#[tokio::test(start_paused = true)]
async fn the_first_result_is_no_replay_and_is_sent_for_once() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(&server, [], &sent);
    let result = result(
        RetryPolicy::new()
            .call(connect, Call::keyed(tool("charge")))
            .await,
    );
    assert_eq!(replayed_at(&result), None);
    assert_eq!(sent.keys().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_kept_back_is_asked_for_again() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(&server, [Fault::KeepsTheAnswer], &sent);
    let result = result(
        RetryPolicy::new()
            .call(connect, Call::keyed(tool("charge")))
            .await,
    );
    assert!(replayed_at(&result).is_some());
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_in_progress_is_waited_for_as_long_as_the_server_says() {
    let server = Server::new();
    let params = tool("slow").with_idempotency_key(&key("slow"));
    let client = super::connect(server.clone()).await;
    let first = tokio::spawn({
        let (peer, params) = (client.peer().clone(), params.clone());
        async move { peer.call_tool(params).await.unwrap() }
    });
    while server.runs() == 0 {
        tokio::task::yield_now().await;
    }

    let started = Instant::now();
    let mut first = Some(first);
    let connect = |attempt: Attempt| {
        let first = (attempt.number() == 2).then(|| first.take().unwrap());
        let (server, reuse) = (server.clone(), attempt.may_reuse_connection());
        let peer = client.peer();
        async move {
            assert_eq!(reuse, first.is_some(), "the server has answered before");
            if let Some(first) = first {
                server.open_gate();
                first.await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(peer)
        }
    };
    let result = result(RetryPolicy::new().call(connect, Call::keyed(params)).await);
    assert!(replayed_at(&result).is_some());
    assert_eq!(server.runs(), 1);
    // What the server says, not a pause of our own.
    assert_eq!(started.elapsed().as_millis(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_not_repeated() {
    let (server, sent) = (Server::new(), Sent::default());
    let of = |amount: i64| {
        params("charge", json!({ "amount": amount }), Value::Null)
            .with_idempotency_key(&key("twice"))
    };
    let policy = RetryPolicy::new();
    let call = Call::keyed(of(1));
    result(policy.call(connector(&server, [], &sent), call).await);
    let call = Call::keyed(of(2));
    let error = policy
        .call(connector(&server, [], &sent), call)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.attempts()),
        (CallErrorKind::Refused, 1)
    );
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.type_name(), "idempotency_key_conflict");
    assert_eq!(refusal.action(), Action::UseNewKey);
    assert!(!error.may_have_run());
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_left_to_the_operator() {
    let (server, sent) = (Server::new(), Sent::default());
    let call = Call::keyed(tool("in_doubt"));
    let policy = RetryPolicy::new();
    let first = policy
        .call(connector(&server, [], &sent), call.clone())
        .await
        .unwrap_err();
    assert_eq!(first.kind(), CallErrorKind::Answered);
    assert_eq!(first.answer().unwrap().message, "1");
    let error = policy
        .call(connector(&server, [], &sent), call)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), error.attempts()),
        (CallErrorKind::Refused, 1)
    );
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.action(), Action::AskOperator);
    assert_eq!(refusal.outcome(), CommitOutcome::Unknown);
    assert!(error.may_have_run());
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_call_without_a_key_is_not_repeated_and_may_have_run() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(&server, [Fault::LosesTheAnswer], &sent);
    let error = RetryPolicy::new()
        .call(connect, Call::unkeyed(tool("unprotected")))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    assert_eq!(
        (error.attempts(), error.may_have_run(), error.key()),
        (1, true, None)
    );
    assert!(error.to_string().contains("may have run"), "{error}");
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_only_reads_is_repeated_without_a_key() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = connector(&server, [Fault::LosesTheAnswer], &sent);
    let call = Call::of(&listed(&server, "look").await, tool("look"));
    result(RetryPolicy::new().call(connect, call).await);
    assert_eq!(server.runs(), 2);
    assert_eq!(sent.keys(), [Value::Null, Value::Null]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_found_no_server_was_not_run_and_is_repeated() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = |attempt: Attempt| {
        let (server, sent) = (server.clone(), sent.clone());
        async move {
            if attempt.number() < 3 {
                return Err("no server");
            }
            Ok(link::connect(server, Fault::None, &sent).await)
        }
    };
    let call = Call::unkeyed(tool("unprotected"));
    let policy = RetryPolicy::new();
    let error = policy
        .clone()
        .with_attempts(2)
        .call(connect, call.clone())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::NotRun);
    assert!(!error.may_have_run());
    result(policy.call(connect, call).await);
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_closed_connection_was_not_run() {
    let server = Server::new();
    let client = super::connect(server.clone()).await;
    let peer = client.peer().clone();
    client.cancel().await.unwrap();
    let call = Call::unkeyed(tool("unprotected"));
    let error = RetryPolicy::new().call(&peer, call).await.unwrap_err();
    assert_eq!((error.kind(), error.attempts()), (CallErrorKind::NotRun, 5));
    assert_eq!(server.runs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lost_attempt_is_not_forgotten_when_the_next_ones_find_no_server() {
    let (server, sent) = (Server::new(), Sent::default());
    let connect = |attempt: Attempt| {
        let (server, sent) = (server.clone(), sent.clone());
        async move {
            if attempt.number() > 1 {
                return Err("no server");
            }
            Ok(link::connect(server, Fault::LosesTheAnswer, &sent).await)
        }
    };
    let call = Call::keyed(tool("charge"));
    let key = call.key().unwrap().to_owned();
    let error = RetryPolicy::new().call(connect, call).await.unwrap_err();
    assert_eq!(error.kind(), CallErrorKind::MayHaveRun);
    assert_eq!(error.attempts(), 5);
    assert_eq!(error.key().unwrap().as_str(), key);
    assert_eq!(server.runs(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_with_its_key_in_an_argument_gets_none_in_meta() {
    let (server, sent) = (Server::new(), Sent::default());
    let definition = listed(&server, "charge_by_argument").await;
    let arguments = json!({ "request_key": "from-the-model" });
    let call = Call::of(
        &definition,
        params("charge_by_argument", arguments, Value::Null),
    );
    assert_eq!(call.key(), Some("from-the-model"));
    let connect = connector(&server, [Fault::LosesTheAnswer], &sent);
    let result = result(RetryPolicy::new().call(connect, call).await);
    assert!(replayed_at(&result).is_some());
    assert_eq!(server.runs(), 1);
    assert_eq!(sent.keys(), [Value::Null, Value::Null]);
}
