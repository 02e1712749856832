//! Whose key it is, and who may have an answer.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database, Stored, effect},
};
use mcp_idempotent_tower::{Denied, Idempotency};
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use crate::{
    server::{Server, text},
    wire::assert_wire,
    world::{Gate, done, engine, on_each_store, until},
};

fn keyed() -> CallToolRequestParams {
    call("work", json!({ "n": 1 })).with_key("k")
}

async fn scopes_and_applications_on_one_database_never_meet<D: Database>() {
    let database = D::create().await;
    let callers = [("app", "ann"), ("app", "bob"), ("other app", "ann")];
    for (application, scope) in callers {
        let idempotency = Idempotency::builder(application, database.store(2))
            .with_fixed_scope(scope)
            .build()
            .unwrap();
        let server = Server::<D>::new(idempotency, move |connection, _| {
            Box::pin(async move {
                let name = format!("{application} {scope}");
                effect::<D>(connection, &name).await.unwrap();
                text(name)
            })
        });
        let client = Client::of(server).await;
        for params in [keyed(), call("work", json!({ "n": 1 }))] {
            let first = client.call(params.clone()).await;
            assert_eq!(first.success(), format!("{application} {scope}"));
            assert!(!first.is_replay());
            assert!(client.call(params).await.is_replay());
        }
    }
    assert_eq!(database.effects().await.len(), 6);
    assert_eq!(database.records().await, [Stored::Completed; 6]);
}

async fn who_may_not_call_gets_no_answer<D: Database>() {
    let database = D::create().await;
    let allowed = Arc::new(AtomicBool::new(true));
    let hook = Arc::clone(&allowed);
    let idempotency = engine(database.store(2))
        .with_authorize(move |_, tool| {
            assert_eq!(tool, "work");
            let allowed = hook.load(Ordering::SeqCst);
            Box::pin(async move {
                if allowed {
                    Ok(())
                } else {
                    Err(Denied::new("You may not."))
                }
            })
        })
        .build()
        .unwrap();
    let gate = Gate::new();
    let server = Server::<D>::new(idempotency, gate.after::<D, _>(done, |_| text("a secret")));
    let client = Client::of(server.clone()).await;
    let first = client.send(keyed()).await.unwrap();
    gate.arrival().await;
    let joined = client.send(keyed()).await.unwrap();
    until(async || server.idempotency.engine().waiting() == 1).await;
    // The right is withdrawn while one waits.
    allowed.store(false, Ordering::SeqCst);
    gate.open();
    assert_eq!(first.answer().await.unwrap().success(), "a secret");
    assert_wire("unauthorized", &joined.answer().await.unwrap());
    // A replay, a conflict, a new call.
    let conflict = call("work", json!({ "n": 2 })).with_key("k");
    for params in [keyed(), conflict] {
        assert_wire("unauthorized", &client.call(params).await);
    }
    let new = call("work", json!({ "n": 3 }));
    assert_wire("unauthorized_without_a_key", &client.call(new).await);
    assert_eq!(server.runs(), 1);
    allowed.store(true, Ordering::SeqCst);
    assert_eq!(client.call(keyed()).await.success(), "a secret");
}

on_each_store! {
    scopes_and_applications_on_one_database_never_meet,
    who_may_not_call_gets_no_answer,
}
