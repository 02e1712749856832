//! Callers that leave.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_tower::{Idempotency, IdempotencyLayer, MemoryStore, ServerExt as _};
use tower::timeout::TimeoutLayer;

use super::{Mailer, hello, idempotency, key, lease, number, refusal, slowly, until};
use crate::client::{Client, call, connect, params};

async fn behind_the_layer() -> (Idempotency<MemoryStore>, Mailer, Arc<Client>) {
    let idempotency = idempotency();
    let layer = IdempotencyLayer::new(idempotency.clone(), lease()).unwrap();
    let server = Mailer::new().idempotent(layer);
    let mailer = server.handler().clone();
    let client = Arc::new(connect(server).await);
    (idempotency, mailer, client)
}

/// The retry gets what the call that runs has sent.
async fn retry_joins(
    idempotency: &Idempotency<MemoryStore>,
    mailer: &Mailer,
    client: &Arc<Client>,
) {
    let retry = slowly(client, key("k"));
    until("joined", || idempotency.engine().waiting() == 1).await;
    mailer.go_on.add_permits(1);
    assert_eq!(number(&retry.await.unwrap()), 1);
    assert_eq!(mailer.sent(), 1);
}

#[tokio::test]
async fn a_timeout_above_stops_neither_the_execution_nor_those_who_joined() {
    let idempotency = idempotency();
    let layer = IdempotencyLayer::new(idempotency.clone(), lease()).unwrap();
    let patient = Mailer::new().idempotent(layer);
    let mailer = patient.handler().clone();
    let hasty = patient
        .clone()
        .layered(TimeoutLayer::new(Duration::from_millis(50)));
    let patient = connect(patient).await;
    let hasty = connect(hasty).await;

    // The first caller of all is dropped.
    let first = call(&hasty, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&first), ("call_timed_out", "unknown"));
    assert_eq!(idempotency.running(), 1);

    let joined =
        tokio::spawn(async move { call(&patient, params("send_slowly", hello(), key("k"))).await });
    until("joined", || idempotency.engine().waiting() == 1).await;
    // One that joined is dropped.
    let second = call(&hasty, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&second), ("call_timed_out", "unknown"));

    mailer.go_on.add_permits(1);
    assert_eq!(number(&joined.await.unwrap()), 1);
    let retry = call(&hasty, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(number(&retry), 1);
    assert_eq!(mailer.sent(), 1);
}

#[tokio::test]
async fn a_cancelled_call_runs_on_and_its_retry_joins() {
    let (idempotency, mailer, client) = behind_the_layer().await;
    let request = rmcp::model::ClientRequest::CallToolRequest(rmcp::model::CallToolRequest::new(
        params("send_slowly", hello(), key("k")),
    ));
    let handle = client
        .send_cancellable_request(request, rmcp::service::PeerRequestOptions::no_options())
        .await
        .unwrap();
    until("began", || mailer.sent() == 1).await;
    handle.cancel(Some("tired".into())).await.unwrap();
    retry_joins(&idempotency, &mailer, &client).await;
}

#[tokio::test]
async fn a_client_that_times_out_and_cancels_joins_by_its_retry() {
    use rmcp::{
        model::{CallToolRequest, ClientRequest},
        service::{PeerRequestOptions, ServiceError},
    };

    let (idempotency, mailer, client) = behind_the_layer().await;
    // rmcp's client sends `notifications/cancelled` when its own patience is over.
    let mut options = PeerRequestOptions::no_options();
    options.timeout = Some(Duration::from_millis(50));
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params(
        "send_slowly",
        hello(),
        key("k"),
    )));
    let first = client.send_cancellable_request(request, options).await;
    let timed_out = first.unwrap().await_response().await.unwrap_err();
    assert!(
        matches!(timed_out, ServiceError::Timeout { .. }),
        "{timed_out}"
    );
    assert_eq!((mailer.sent(), idempotency.running()), (1, 1));
    retry_joins(&idempotency, &mailer, &client).await;
}

#[tokio::test]
async fn shutdown_waits_for_executions_whose_callers_are_gone() {
    let idempotency = idempotency();
    let layer = IdempotencyLayer::new(idempotency.clone(), lease()).unwrap();
    let server = Mailer::new()
        .idempotent(layer)
        .layered(TimeoutLayer::new(Duration::from_millis(20)));
    let mailer = server.handler().clone();
    let client = connect(server).await;
    let gone = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(refusal(&gone).0, "call_timed_out");

    let early = idempotency.shutdown(Duration::from_millis(1)).await;
    assert_eq!(early.unwrap_err().running, 1);
    mailer.go_on.add_permits(1);
    idempotency.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(idempotency.running(), 0);
    // The record is written.
    let retry = call(&client, params("send_slowly", hello(), key("k"))).await;
    assert_eq!(number(&retry), 1);
}

#[tokio::test]
async fn a_thousand_callers_wait_for_one_execution() {
    let (idempotency, mailer, client) = behind_the_layer().await;
    let calls: Vec<_> = (0..1000).map(|_| slowly(&client, key("k"))).collect();
    until("all wait", || idempotency.engine().waiting() == 999).await;
    assert_eq!(idempotency.running(), 1);
    mailer.go_on.add_permits(1);
    for call in calls {
        assert_eq!(number(&call.await.unwrap()), 1);
    }
    assert_eq!(idempotency.engine().waiting(), 0);
    assert_eq!(mailer.sent(), 1);
}
