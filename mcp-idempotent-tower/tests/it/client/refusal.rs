//! Refusals, written by a server and read back.

use std::{collections::VecDeque, sync::Mutex, time::Duration};

use mcp_idempotent_tower::{
    Refusal,
    client::{Call, CallErrorKind, ReceivedRefusal, RetryPolicy, replayed_at},
    core::{Action, CommitOutcome, ErrorKind},
    refusal,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock},
    service::{RequestContext, ServiceError},
};
use serde_json::json;
use tokio::time::Instant;

const TYPES: [ErrorKind; 16] = [
    ErrorKind::KeyInvalid,
    ErrorKind::KeyRequired,
    ErrorKind::KeyConflict,
    ErrorKind::KeyRotated,
    ErrorKind::KeyInProgress,
    ErrorKind::KeyExpired,
    ErrorKind::OutcomeUnknown,
    ErrorKind::ResultTooLarge,
    ErrorKind::StoreUnavailable,
    ErrorKind::NotCommitted,
    ErrorKind::Unauthorized,
    ErrorKind::TooManyWaiting,
    ErrorKind::TooManyNewCalls,
    ErrorKind::Misconfigured,
    ErrorKind::HandlerPanicked,
    ErrorKind::TransactionTooLong,
];

/// Every type with every outcome and every action.
fn combinations() -> impl Iterator<Item = Refusal> {
    use Action::{AskOperator, RetrySameKey, UseNewKey, Wait};
    use CommitOutcome::{Committed, NotCommitted, Unknown};
    TYPES.into_iter().flat_map(|kind| {
        [Committed, NotCommitted, Unknown]
            .into_iter()
            .flat_map(move |outcome| {
                [AskOperator, RetrySameKey, UseNewKey, Wait].map(|action| {
                    Refusal::new(kind, outcome, action, "Wait a little.")
                        .with_retry_after(Duration::from_millis(1_500))
                })
            })
    })
}

/// Whether the wire page has a row for it.
fn is_documented(refusal: &Refusal) -> bool {
    let row = format!(
        "| `{}` | {} | `{}` | `{}` |",
        refusal.kind().as_str(),
        refusal::error_data(refusal).code.0,
        refusal.outcome().as_str(),
        refusal.action().as_str()
    );
    include_str!("../../../../docs/wire.md").contains(&row)
}

/// What a server may say.
fn refusals() -> impl Iterator<Item = Refusal> {
    combinations().filter(is_documented)
}

fn assert_same(received: Option<ReceivedRefusal>, refusal: &Refusal) {
    let received = received.unwrap();
    assert!(received.is(refusal.kind()));
    assert_eq!(
        TYPES.into_iter().filter(|kind| received.is(*kind)).count(),
        1
    );
    assert_eq!(received.outcome(), refusal.outcome());
    assert_eq!(received.action(), refusal.action());
    assert_eq!(received.retry_after(), refusal.retry_after());
    assert_eq!(received.message(), refusal.message());
}

#[test]
fn a_refusal_is_read_from_an_error_and_from_a_result() {
    for refusal in refusals() {
        let error = refusal::error_data(&refusal);
        assert_same(ReceivedRefusal::from_error(&error), &refusal);
        let error = ServiceError::McpError(error);
        assert_same(ReceivedRefusal::from_service_error(&error), &refusal);
        let result = refusal::error_result(&refusal);
        assert_same(ReceivedRefusal::from_result(&result), &refusal);
    }
}

#[test]
fn a_refusal_is_believed_where_the_wire_page_has_it() {
    assert!(
        TYPES
            .into_iter()
            .all(|kind| refusals().any(|refusal| refusal.kind() == kind))
    );
    for refusal in combinations() {
        let error = ReceivedRefusal::from_error(&refusal::error_data(&refusal));
        let result = ReceivedRefusal::from_result(&refusal::error_result(&refusal));
        let is_documented = is_documented(&refusal);
        assert_eq!(error.is_some(), is_documented, "{refusal:?}");
        assert_eq!(result.is_some(), is_documented, "{refusal:?}");
    }
}

#[test]
fn what_is_no_refusal_is_not_read_as_one() {
    let error = |data| ErrorData::internal_error("no", Some(data));
    for data in [
        json!(null),
        json!({ "type": "idempotency_key_conflict" }),
        json!({ "type": "other", "outcome": "committed", "action": "wait" }),
        json!({ "type": "idempotency_other", "outcome": "unknown", "action": "wait" }),
        json!({ "type": "idempotency_key_conflict", "outcome": "maybe", "action": "wait" }),
        json!({ "type": "idempotency_key_conflict", "outcome": "unknown", "action": "dance" }),
    ] {
        assert_eq!(ReceivedRefusal::from_error(&error(data)), None);
    }
    let result = CallToolResult::error(vec![ContentBlock::text("no")]);
    assert_eq!(ReceivedRefusal::from_result(&result), None);
    assert_eq!(
        ReceivedRefusal::from_service_error(&ServiceError::TransportClosed),
        None
    );
    assert_eq!(replayed_at(&result), None);
}

type Answer = Result<CallToolResponse, ErrorData>;

/// Answers tool calls with these, in turn.
struct Scripted(Mutex<VecDeque<Answer>>);

impl ServerHandler for Scripted {
    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0.lock().unwrap().pop_front().unwrap()
    }
}

fn as_error(refusal: &Refusal) -> Answer {
    Err(refusal::error_data(refusal))
}

fn as_result(refusal: &Refusal) -> Answer {
    Ok(refusal::error_result(refusal).into())
}

fn call() -> CallToolRequestParams {
    CallToolRequestParams::new("any")
}

#[tokio::test(start_paused = true)]
async fn what_a_refusal_allows_decides_whether_a_call_is_repeated() {
    for refusal in refusals() {
        for write in [as_error, as_result] {
            for is_keyed in [false, true] {
                let done = Ok(CallToolResult::success(Vec::new()).into());
                let answers = Mutex::new([write(&refusal), done].into());
                let client = super::connect(Scripted(answers)).await;
                let call = if is_keyed {
                    Call::keyed(call())
                } else {
                    Call::unkeyed(call())
                };
                let started = Instant::now();
                let answer = RetryPolicy::new().call(client.peer(), call).await;

                let asks_for_a_repeat =
                    matches!(refusal.action(), Action::RetrySameKey | Action::Wait);
                let what = format!("{refusal:?}, keyed: {is_keyed}");
                if asks_for_a_repeat && is_keyed {
                    answer.expect(&what);
                    assert_eq!(started.elapsed().as_millis(), 1_500, "{what}");
                } else {
                    let error = answer.expect_err(&what);
                    assert_eq!(error.kind(), CallErrorKind::Refused, "{what}");
                    assert_eq!(error.attempts(), 1, "{what}");
                    assert_same(error.refusal().cloned(), &refusal);
                    let may_have_run = refusal.outcome() != CommitOutcome::NotCommitted;
                    assert_eq!(error.may_have_run(), may_have_run, "{what}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_with_an_unknown_outcome_is_not_forgotten() {
    let refusal = |outcome| {
        Refusal::new(
            ErrorKind::StoreUnavailable,
            outcome,
            Action::RetrySameKey,
            "Again.",
        )
    };
    let answers = [
        as_error(&refusal(CommitOutcome::Unknown)),
        as_error(&refusal(CommitOutcome::NotCommitted)),
    ];
    let client = super::connect(Scripted(Mutex::new(answers.into()))).await;
    let policy = RetryPolicy::new().with_attempts(2);
    let error = policy
        .call(client.peer(), Call::keyed(call()))
        .await
        .unwrap_err();
    assert_eq!(
        error.refusal().unwrap().outcome(),
        CommitOutcome::NotCommitted
    );
    assert!(error.may_have_run());
}

#[tokio::test(start_paused = true)]
async fn a_tools_own_error_result_is_handed_on() {
    let failed = CallToolResult::error(vec![ContentBlock::text("no such card")]);
    let script = [Ok(failed.into()), Ok(CallToolResult::default().into())];
    let client = super::connect(Scripted(Mutex::new(script.into()))).await;
    let policy = RetryPolicy::new();
    for is_error in [Some(true), None] {
        let answer = policy.call(client.peer(), Call::unkeyed(call()));
        let CallToolResponse::Complete(result) = answer.await.unwrap() else {
            panic!("no result")
        };
        assert_eq!(result.is_error, is_error);
    }
}
