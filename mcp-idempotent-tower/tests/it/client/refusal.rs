//! Refusals, written by a server and read back.

use std::time::Duration;

use mcp_idempotent_tower::{
    Refusal,
    client::{ReceivedRefusal, replayed_at},
    core::{Action, CommitOutcome, ErrorKind},
    wire,
};
use rmcp::{
    ErrorData,
    model::{CallToolResult, ContentBlock},
    service::ServiceError,
};
use serde_json::json;

fn refusals() -> impl Iterator<Item = Refusal> {
    use Action::{AskOperator, RetrySameKey, UseNewKey, Wait};
    use CommitOutcome::{Committed, NotCommitted, Unknown};
    [Committed, NotCommitted, Unknown]
        .into_iter()
        .flat_map(|outcome| {
            [AskOperator, RetrySameKey, UseNewKey, Wait].map(|action| {
                Refusal::new(ErrorKind::KeyInProgress, outcome, action, "Wait a little.")
                    .with_retry_after(Duration::from_millis(1_500))
            })
        })
}

fn assert_same(received: Option<ReceivedRefusal>, refusal: &Refusal) {
    let received = received.unwrap();
    assert!(received.is(refusal.kind()));
    assert!(!received.is(ErrorKind::KeyConflict));
    assert_eq!(received.outcome(), refusal.outcome());
    assert_eq!(received.action(), refusal.action());
    assert_eq!(received.retry_after(), refusal.retry_after());
    assert_eq!(received.message(), refusal.message());
}

#[test]
fn a_refusal_is_read_from_an_error_and_from_a_result() {
    for refusal in refusals() {
        let error = wire::error_data(&refusal);
        assert_same(ReceivedRefusal::from_error(&error), &refusal);
        let error = ServiceError::McpError(error);
        assert_same(ReceivedRefusal::from_service_error(&error), &refusal);
        let result = wire::error_result(&refusal);
        assert_same(ReceivedRefusal::from_result(&result), &refusal);
    }
}

#[test]
fn what_is_no_refusal_is_not_read_as_one() {
    let error = |data| ErrorData::internal_error("no", Some(data));
    for data in [
        json!(null),
        json!({ "type": "idempotency_key_conflict" }),
        json!({ "type": "other", "outcome": "committed", "action": "wait" }),
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
