//! Callers that wait for a running call.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyLayer, MemoryStore, OnError, ServerExt as _, layer::Rule,
};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::{Mailer, hello, idempotency, key, lease, number, refusal, until};
use crate::client::{Client, call, connect, params};

/// A server that can be held, and a client of it.
struct Scene {
    idempotency: Idempotency<MemoryStore>,
    mailer: Mailer,
    client: Arc<Client>,
}

impl Scene {
    async fn new(idempotency: Idempotency<MemoryStore>, rule: Rule<MemoryStore>) -> Self {
        let layer = IdempotencyLayer::new(idempotency.clone(), rule).unwrap();
        let server = Mailer::new().idempotent(layer);
        Self {
            idempotency,
            mailer: server.handler().clone(),
            client: Arc::new(connect(server).await),
        }
    }

    fn call(&self, tool: &'static str, arguments: Value) -> JoinHandle<Value> {
        let client = Arc::clone(&self.client);
        tokio::spawn(async move { call(&client, params(tool, arguments, key("k"))).await })
    }

    async fn running(&self, sent: u32) {
        until("it runs", || self.mailer.sent() == sent).await;
    }

    async fn waiting(&self, count: usize) {
        let engine = self.idempotency.engine();
        until("they wait", || engine.waiting() == count).await;
    }
}

#[tokio::test]
async fn an_attempt_that_leaves_no_record_answers_its_own_caller_and_wakes_one() {
    let scene = Scene::new(idempotency(), Rule::lease(OnError::Release)).await;
    let mut calls = vec![scene.call("fail_slowly", Value::Null)];
    scene.running(1).await;
    for _ in 0..5 {
        calls.push(scene.call("fail_slowly", Value::Null));
    }
    scene.waiting(5).await;
    for sent in [2, 3] {
        scene.mailer.go_on.add_permits(1);
        // One of those who waited runs it anew; the others go on waiting.
        scene.running(sent).await;
        let others = 6 - usize::try_from(sent).unwrap();
        scene.waiting(others).await;
    }
    // Twice in a row is enough: the rest are told to retry.
    scene.mailer.go_on.add_permits(1);
    let (mut own, mut told) = (Vec::new(), 0);
    for call in calls {
        let answer = call.await.unwrap();
        let error = &answer["error"];
        if error["data"]["type"].is_string() {
            assert_eq!(error["data"]["action"], "retry_same_key", "{answer}");
            assert_eq!(error["data"]["outcome"], "unknown", "{answer}");
            told += 1;
        } else {
            own.push(error["message"].as_str().unwrap().to_owned());
        }
    }
    own.sort();
    assert_eq!(own, ["1", "2", "3"]);
    assert_eq!(told, 3);
    assert_eq!(scene.mailer.sent(), 3);
}

#[tokio::test]
async fn callers_beyond_the_limits_of_those_who_wait_are_told_so() {
    for (per_key, per_process) in [(2, 100), (100, 2)] {
        let idempotency = Idempotency::builder("mailer", MemoryStore::new())
            .with_one_caller()
            .with_waiter_limits(per_key, per_process)
            .build()
            .unwrap();
        let scene = Scene::new(idempotency, lease()).await;
        let mut calls = vec![scene.call("send_slowly", hello())];
        scene.running(1).await;
        calls.push(scene.call("send_slowly", hello()));
        calls.push(scene.call("send_slowly", hello()));
        scene.waiting(2).await;
        let beyond = scene.call("send_slowly", hello()).await.unwrap();
        assert_eq!(
            refusal(&beyond),
            ("idempotency_too_many_waiting", "unknown")
        );
        // Who need not wait is not counted.
        let other = call(&scene.client, params("send", hello(), key("other"))).await;
        assert_eq!(number(&other), 2);
        scene.mailer.go_on.add_permits(1);
        for call in calls {
            assert_eq!(number(&call.await.unwrap()), 1);
        }
    }
}

#[tokio::test]
async fn a_grant_that_is_withdrawn_while_a_caller_waits_counts_when_it_wakes() {
    let withdrawn = Arc::new(AtomicBool::new(false));
    let hook = Arc::clone(&withdrawn);
    let idempotency = Idempotency::builder("mailer", MemoryStore::new())
        .with_one_caller()
        .with_authorize(move |_, _| {
            let withdrawn = hook.load(Ordering::SeqCst);
            Box::pin(async move {
                if withdrawn {
                    return Err(Denied::new("withdrawn"));
                }
                Ok(())
            })
        })
        .build()
        .unwrap();
    let scene = Scene::new(idempotency, lease()).await;
    let first = scene.call("send_slowly", hello());
    scene.running(1).await;
    let joined = scene.call("send_slowly", hello());
    scene.waiting(1).await;
    withdrawn.store(true, Ordering::SeqCst);
    scene.mailer.go_on.add_permits(1);
    let joined = joined.await.unwrap();
    assert_eq!(refusal(&joined), ("idempotency_unauthorized", "unknown"));
    assert!(joined.get("result").is_none(), "{joined}");
    // It ran with the right that it had.
    assert_eq!(number(&first.await.unwrap()), 1);
}
