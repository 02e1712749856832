use std::time::Duration;
use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use mcp_idempotent_core::{
    Action, Authorize, Begun, Bytes, CallInfo, CommitOutcome, Engine, ErrorKind, Policy, Record,
    RecordState, Refusal, ResultKind, Store, StoreError, Timestamp,
    store::{Claim, Claimed, Completion, Lease, LeaseEnd, Reach, StoreErrorKind},
};

use super::{Outcome, Reply, Server, own, replayed, succeed, until};

#[derive(Default)]
pub(super) struct Guard {
    pub(super) shut: AtomicBool,
    asked: AtomicUsize,
}

impl Authorize for Guard {
    fn authorize<'a>(
        &'a self,
        _call: &'a CallInfo,
    ) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let shut = self.shut.load(Ordering::SeqCst);
        Box::pin(async move {
            if shut {
                return Err(Refusal::new(
                    ErrorKind::Unauthorized,
                    CommitOutcome::Unknown,
                    Action::AskOperator,
                    "withdrawn",
                ));
            }
            Ok(())
        })
    }
}

const DENIED: Outcome = Outcome::Refused("idempotency_unauthorized", "unknown", "ask_operator");

#[tokio::test]
async fn a_caller_without_a_right_gets_neither_a_run_nor_a_replay() {
    let (server, guard) = (Server::new(|_| {}), Guard::default());
    let request = || {
        server
            .request(server.identity(Some("k"), "{}"))
            .with_authorize(&guard)
    };
    guard.shut.store(true, Ordering::SeqCst);
    assert_eq!(server.call_as(request(), succeed("one")).await, DENIED);
    guard.shut.store(false, Ordering::SeqCst);
    assert_eq!(server.call_as(request(), succeed("one")).await, own("one"));
    assert_eq!(
        server.call_as(request(), succeed("two")).await,
        replayed("one")
    );
    guard.shut.store(true, Ordering::SeqCst);
    assert_eq!(server.call_as(request(), succeed("three")).await, DENIED);
    assert_eq!(server.executions(), 1);
}

#[tokio::test]
async fn a_right_that_is_withdrawn_while_waiting_counts() {
    let (server, guard) = (Server::new(|_| {}), std::sync::Arc::new(Guard::default()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let first = {
        let server = server.clone();
        tokio::spawn(async move {
            let handler = async {
                ended.await.unwrap();
                Reply::new(ResultKind::Success, "one")
            };
            server.call("k", handler).await
        })
    };
    until(|| server.executions() == 1).await;
    let waiting = {
        let (server, guard) = (server.clone(), guard.clone());
        tokio::spawn(async move {
            let request = server
                .request(server.identity(Some("k"), "{}"))
                .with_authorize(&*guard);
            server.call_as(request, succeed("never")).await
        })
    };
    until(|| server.engine.waiting() == 1).await;
    guard.shut.store(true, Ordering::SeqCst);
    end.send(()).unwrap();
    assert_eq!(first.await.unwrap(), own("one"));
    assert_eq!(waiting.await.unwrap(), DENIED);
    assert_eq!(guard.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_right_that_is_withdrawn_counts_for_a_waiter_whose_turn_it_is() {
    let (server, guard) = (Server::new(|_| {}), std::sync::Arc::new(Guard::default()));
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let first = tokio::spawn({
        let server = server.clone();
        async move {
            let handler = async {
                ended.await.unwrap();
                Reply::new(ResultKind::NotExecuted, "not executed")
            };
            server.call("k", handler).await
        }
    });
    until(|| server.executions() == 1).await;
    let waiting = tokio::spawn({
        let (server, guard) = (server.clone(), guard.clone());
        async move {
            let request = server
                .request(server.identity(Some("k"), "{}"))
                .with_authorize(&*guard);
            server.call_as(request, succeed("never")).await
        }
    });
    until(|| server.engine.waiting() == 1).await;
    guard.shut.store(true, Ordering::SeqCst);
    end.send(()).unwrap();
    assert_eq!(first.await.unwrap(), own("not executed"));
    assert_eq!(waiting.await.unwrap(), DENIED);
    assert_eq!(server.executions(), 1);
    assert_eq!(server.call("k", succeed("two")).await, own("two"));
}

/// Another process runs the call at first. While it does, the caller's right is withdrawn.
struct Elsewhere {
    guard: std::sync::Arc<Guard>,
    /// Whether the other process leaves a record.
    completes: bool,
    released: std::sync::Arc<AtomicBool>,
    claims: AtomicUsize,
}

impl Store for Elsewhere {
    fn reach(&self) -> Reach {
        Reach::Network
    }
    async fn look_up(&self, _: &Claim) -> Result<Option<Record>, StoreError> {
        Ok(None)
    }
    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        // The engine's own question about its secret.
        if claim.fingerprint.version() == 0 {
            return Ok(Claimed::InProgress);
        }
        if self.claims.fetch_add(1, Ordering::SeqCst) == 0 {
            self.guard.shut.store(true, Ordering::SeqCst);
            return Ok(Claimed::InProgress);
        }
        if self.completes {
            return Ok(Claimed::Found(Record::new(
                claim.fingerprint,
                RecordState::Completed {
                    response: Some(Bytes::from_static(b"secret")),
                    at: Timestamp::from_micros(1),
                },
            )));
        }
        Ok(Claimed::New(Lease::new(claim.id, 1)))
    }
    async fn take_over(&self, _: &Claim, _: i64) -> Result<Option<Lease>, StoreError> {
        panic!("nothing was run")
    }
    async fn renew(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        panic!("nothing was run")
    }
    async fn complete(&self, _: &Lease, _: Completion) -> Result<LeaseEnd, StoreError> {
        panic!("nothing was run")
    }
    async fn release(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        self.released.store(true, Ordering::SeqCst);
        Ok(LeaseEnd::Fenced)
    }
    async fn abandon(&self, _: &Lease) -> Result<LeaseEnd, StoreError> {
        panic!("nothing was run")
    }
    async fn has_unsettled(&self, _: Duration) -> Result<bool, StoreError> {
        Ok(false)
    }
    async fn sweep(&self, _: u32) -> Result<u64, StoreError> {
        Ok(0)
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_while_another_process_runs_the_call_counts() {
    for completes in [true, false] {
        let (server, guard) = (Server::new(|_| {}), std::sync::Arc::new(Guard::default()));
        let released = std::sync::Arc::new(AtomicBool::new(false));
        let engine = Engine::new(
            "tests",
            Elsewhere {
                guard: guard.clone(),
                completes,
                released: released.clone(),
                claims: AtomicUsize::new(0),
            },
        );
        let request = server
            .request(server.identity(Some("k"), "{}"))
            .with_authorize(&*guard);
        let Begun::Answer(answer) = engine.begin_lease(request).await else {
            panic!("the caller has no right any more");
        };
        assert_eq!(Outcome::from(answer, None), DENIED);
        assert_eq!(guard.asked.load(Ordering::SeqCst), 2);
        if !completes {
            until(|| released.load(Ordering::SeqCst)).await;
        }
    }
}

/// A store that is away.
pub(super) struct Away;

impl Away {
    fn error<T>() -> Result<T, StoreError> {
        Err(StoreError::new(
            StoreErrorKind::Unavailable,
            "connection refused",
        ))
    }
}

impl Store for Away {
    fn reach(&self) -> Reach {
        Reach::Network
    }
    async fn look_up(&self, _: &Claim) -> Result<Option<Record>, StoreError> {
        Self::error()
    }
    async fn claim(&self, _: &Claim) -> Result<Claimed<Lease>, StoreError> {
        Self::error()
    }
    async fn take_over(&self, _: &Claim, _: i64) -> Result<Option<Lease>, StoreError> {
        Self::error()
    }
    async fn renew(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        Self::error()
    }
    async fn complete(&self, _: &Lease, _: Completion) -> Result<LeaseEnd, StoreError> {
        Self::error()
    }
    async fn release(&self, _: &Lease, _: Duration) -> Result<LeaseEnd, StoreError> {
        Self::error()
    }
    async fn abandon(&self, _: &Lease) -> Result<LeaseEnd, StoreError> {
        Self::error()
    }
    async fn has_unsettled(&self, _: Duration) -> Result<bool, StoreError> {
        Self::error()
    }
    async fn sweep(&self, _: u32) -> Result<u64, StoreError> {
        Self::error()
    }
}

#[tokio::test]
async fn a_store_that_is_away_refuses_unless_the_policy_says_to_run_unprotected() {
    let server = Server::new(|_| {});
    let engine = Engine::new("tests", Away);
    let begin = async |policy: Policy| {
        let policy = std::sync::Arc::new(policy);
        let identity = server.identity(Some("k"), "{}");
        let call = CallInfo::new("tool", mcp_idempotent_core::Scope::new("alice"));
        engine
            .begin_lease(mcp_idempotent_core::Request::new(call, identity, &policy))
            .await
    };
    let Begun::Answer(answer) = begin(Policy::default()).await else {
        panic!("fails closed by default");
    };
    assert_eq!(
        Outcome::from(answer, None),
        Outcome::Refused(
            "idempotency_store_unavailable",
            "not_committed",
            "retry_same_key"
        )
    );
    let mut open = Policy::default();
    open.run_unprotected_when_store_is_unavailable = true;
    let Begun::FailOpen = begin(open).await else {
        panic!("fails open where the policy says so");
    };
}

#[test]
fn a_refusal_does_not_show_its_source_to_the_caller() {
    let refusal = Refusal::new(
        ErrorKind::StoreUnavailable,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "away",
    )
    .with_source(StoreError::new(
        StoreErrorKind::Unavailable,
        "password=hunter2",
    ));
    assert_eq!(refusal.to_string(), "away");
    assert!(std::error::Error::source(&refusal).is_some());
}
