//! Whole attempts in lease mode.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use mcp_idempotent_core::{
    Answer, BeginError, Begun, CallInfo, Engine, HandlerResult, IdempotencyKey, LeaseHandle,
    OnError, Policy, Request, ResultKind,
};
use tokio::time::{sleep, timeout};

use super::*;

struct Reply(ResultKind);

impl HandlerResult for Reply {
    fn kind(&self) -> ResultKind {
        self.0
    }

    fn encode(&self) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        Ok(Bytes::from_static(b"done"))
    }
}

async fn call(
    engine: &Engine<SqliteStore>,
    policy: &Arc<Policy>,
    key: &str,
    handler: impl AsyncFnOnce(LeaseHandle) -> ResultKind,
) -> String {
    let scope = Scope::new("alice");
    let key = IdempotencyKey::new(key).unwrap();
    let arguments = CanonicalArguments::new(None, &[]);
    let identity = engine.identify(&scope, Some(&key), "tool", &arguments);
    let request = Request::new(CallInfo::new("tool", scope), identity, policy);
    let answer = match engine.begin(request).await {
        Begun::Answer(answer) => answer,
        Begun::Attempt(mut attempt) => {
            let handle = attempt.handle();
            let kind = attempt.run(handler(handle)).await;
            let reply = Reply(kind.unwrap_or(ResultKind::Interrupted));
            attempt.finish(&reply).await
        }
        Begun::FailOpen => panic!("the store is there"),
    };
    match answer {
        Answer::Executed => "executed".to_owned(),
        Answer::Replayed(_) => "replayed".to_owned(),
        Answer::Refused(refusal) => refusal.kind().as_str().to_owned(),
    }
}

fn policy() -> Policy {
    let mut policy = Policy::default();
    policy.on_error = OnError::InDoubt;
    policy
}

#[tokio::test]
async fn a_transaction_limit_beyond_all_bounds_is_refused_and_not_a_panic() {
    let database = Database::new().await;
    let store = database
        .builder()
        .with_transaction_limit(Duration::MAX)
        .build()
        .unwrap();
    let engine = Engine::new("tests", store);
    let answer = call(&engine, &Arc::new(policy()), "k", async |_| {
        ResultKind::Success
    })
    .await;
    assert_eq!(answer, "idempotency_misconfigured");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_handler_gave_its_transaction_away_is_answered_at_once() {
    let database = Database::new().await;
    let engine = Engine::new("tests", database.store());
    let kept = std::sync::Mutex::new(None);
    let since = Instant::now();
    let answer = call(&engine, &Arc::new(policy()), "k", async |handle| {
        let transaction = handle.begin::<SqliteStore>().await.unwrap();
        *kept.lock().unwrap() = Some(transaction);
        ResultKind::Success
    })
    .await;
    assert_eq!(answer, "idempotency_outcome_unknown");
    assert!(
        since.elapsed() < Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_that_outlives_a_dropped_attempt_opens_and_keeps_no_transaction() {
    let database = Database::new().await;
    let engine = Engine::new("tests", database.store());
    let policy = Arc::new(policy());
    for begins_before in [false, true] {
        let key = IdempotencyKey::new(format!("k-{begins_before}")).unwrap();
        let scope = Scope::new("alice");
        let arguments = CanonicalArguments::new(None, &[]);
        let identity = engine.identify(&scope, Some(&key), "tool", &arguments);
        let request = Request::new(CallInfo::new("tool", scope), identity, &policy);
        let Begun::Attempt(attempt) = engine.begin(request).await else {
            panic!("the key is new");
        };
        let handle = attempt.handle();
        if begins_before {
            drop(handle.begin::<SqliteStore>().await.unwrap());
        }
        drop(attempt);
        let begun = handle.begin::<SqliteStore>().await;
        assert!(matches!(begun, Err(BeginError::Ended)), "{begun:?}");
        // Nothing is open that would keep another one from writing.
        let other = timeout(
            Duration::from_secs(5),
            database.store().begin(&claim(1).call, None),
        )
        .await;
        assert!(matches!(other, Ok(Ok(Claimed::New(_)))), "{begins_before}");
    }
}

/// A queue of handlers in another process, which never ends.
async fn keep_writing(store: SqliteStore, holds: Duration, turns: Arc<AtomicUsize>) {
    loop {
        let Ok(Claimed::New(mut transaction)) = store.begin(&claim(1).call, None).await else {
            continue;
        };
        pay(&mut transaction, "elsewhere").await;
        sleep(holds).await;
        store.end(transaction, None, End::CommitUnrecorded).await;
        turns.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_full_queue_of_handlers_in_another_process() {
    let database = Database::new().await;
    let limit = Duration::from_millis(500);
    let store = || {
        let store = database.builder().with_transaction_limit(limit);
        store.build().unwrap()
    };
    let elsewhere = store();
    let turns = Arc::new(AtomicUsize::new(0));
    let queue: Vec<_> = (0..8)
        .map(|_| {
            let holds = Duration::from_millis(200);
            tokio::spawn(keep_writing(elsewhere.clone(), holds, Arc::clone(&turns)))
        })
        .collect();
    let engine = Engine::new("tests", store());
    let mut policy = policy();
    policy.lease = Duration::from_millis(1600);
    let answer = call(&engine, &Arc::new(policy), "k", async |handle| {
        let before = turns.load(Ordering::SeqCst);
        // Several times the lease.
        while turns.load(Ordering::SeqCst) < before + 30 && !handle.is_lost() {
            sleep(Duration::from_millis(10)).await;
        }
        ResultKind::Success
    })
    .await;
    assert_eq!(answer, "executed");
    for writing in queue {
        writing.abort();
    }
}
