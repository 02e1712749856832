//! One call as the engine sees it, whatever the store.

#![allow(
    dead_code,
    unused_imports,
    reason = "each benchmark compiles its own copy and uses a part of it"
)]

mod steady;

pub(crate) use self::steady::steady;

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Answer, Begun, Bytes, CallInfo, CanonicalArguments, Engine, HandlerResult, IdempotencyKey,
    Policy, Request, ResultKind, Scope, Store, TransactionStore,
};
use serde_json::{Map, Value, json};

/// What the handler writes: the 40 bytes that the bare transaction writes too.
pub(crate) const EFFECT: [u8; 40] = [7; 40];

/// What a handler answers: 200 bytes.
struct Done;

impl HandlerResult for Done {
    fn kind(&self) -> ResultKind {
        ResultKind::Success
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::from_static(&[b'r'; 200]))
    }
}

static POLICY: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);

/// Five arguments, as a tool call has them.
pub(crate) static ARGUMENTS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| arguments("wage for may"));

fn arguments(text: &str) -> Map<String, Value> {
    match json!({
        "account": "DE02120300000000202051",
        "amount": 1999,
        "currency": "EUR",
        "urgent": false,
        "text": text,
    }) {
        Value::Object(arguments) => arguments,
        _ => unreachable!("an object"),
    }
}

/// A key that no call had before, in this process or another.
pub(crate) fn fresh_key() -> String {
    static RUN: LazyLock<u128> = LazyLock::new(|| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos())
    });
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", *RUN, COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn request<S: Store>(
    engine: &Engine<S>,
    key: &str,
    arguments: &Map<String, Value>,
) -> Request<'static> {
    let scope = Scope::new("benchmarks");
    let key = IdempotencyKey::new(key).expect("a valid key");
    let arguments = CanonicalArguments::new(Some(arguments), &[]);
    let identity = engine.identify(&scope, Some(&key), "transfer", &arguments);
    Request::new(CallInfo::new("transfer", scope), identity, &POLICY)
}

/// The same key, asked for something else.
pub(crate) fn conflicting_request<S: Store>(engine: &Engine<S>, key: &str) -> Request<'static> {
    static OTHER: LazyLock<Map<String, Value>> = LazyLock::new(|| arguments("wage for june"));
    request(engine, key, &OTHER)
}

/// A call in transaction mode, whose handler does `write`.
pub(crate) async fn in_transaction<S: TransactionStore>(
    engine: &Engine<S>,
    request: Request<'_>,
    write: impl for<'c> FnOnce(&'c mut S::Connection) -> BoxFuture<'c, ()>,
) -> Answer {
    match engine.begin_transaction(request).await {
        Err(answer) => answer,
        Ok((mut transaction, attempt)) => {
            let ran = attempt.run(write(&mut transaction)).await;
            ran.expect("the handler");
            attempt.finish(Some(transaction), &Done).await
        }
    }
}

/// A call in lease mode, whose handler does nothing.
pub(crate) async fn under_lease<S: Store>(engine: &Engine<S>, request: Request<'_>) -> Answer {
    match engine.begin_lease(request).await {
        Begun::Answer(answer) => answer,
        Begun::Attempt(mut attempt) => {
            attempt.run(async {}).await.expect("the handler");
            attempt.finish(&Done).await
        }
        Begun::FailOpen => unreachable!("not asked for"),
    }
}

pub(crate) fn expect_executed(answer: Answer) {
    assert!(matches!(answer, Answer::Executed), "{answer:?}");
}

pub(crate) fn expect_replayed(answer: Answer) {
    assert!(matches!(answer, Answer::Replayed(_)), "{answer:?}");
}

pub(crate) fn expect_refused(answer: Answer) {
    assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
}

/// The time that one of `calls` takes that join a running one: from its start until it waits, and
/// from the first one's end until it has its answer.
pub(crate) async fn joining<S: Store>(engine: &Engine<S>, calls: u32) -> Duration {
    let key = fresh_key();
    let Begun::Attempt(mut first) = engine.begin_lease(request(engine, &key, &ARGUMENTS)).await
    else {
        panic!("a fresh key is free");
    };
    let join = async || match engine.begin_lease(request(engine, &key, &ARGUMENTS)).await {
        Begun::Answer(answer) => expect_replayed(answer),
        other => panic!("the call runs already: {other:?}"),
    };
    let start = Instant::now();
    let mut waiting: Vec<_> = (0..calls).map(|_| Box::pin(join())).collect();
    for waiter in &mut waiting {
        let mut waiter = pin!(waiter);
        poll_fn(|context| {
            assert!(waiter.as_mut().poll(context).is_pending(), "it waits");
            Poll::Ready(())
        })
        .await;
    }
    let entered = start.elapsed();
    first.run(async {}).await.expect("the handler");
    expect_executed(first.finish(&Done).await);
    let start = Instant::now();
    for waiter in waiting {
        waiter.await;
    }
    (entered + start.elapsed()) / calls
}
