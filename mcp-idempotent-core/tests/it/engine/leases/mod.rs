//! Lease mode in full: attempts that go on, end in doubt, and are found out about.

mod current;
mod doubt;
mod downstream;
mod heartbeat;
#[cfg(feature = "metrics")]
mod measured;
mod operator;
pub(super) mod store;
mod sweep;
mod verify;
mod waiting;

use std::{future::Future, time::Duration};

use mcp_idempotent_core::{
    Begun, LeaseAttempt, LeaseHandle, Policy, ResultKind, Store, store::OperatorStore,
};

use self::store::Faulty;
use super::{Outcome, Reply, Server};

pub(crate) const IN_DOUBT: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");
/// In doubt, and the same call may find out.
const ASK_AGAIN: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "retry_same_key");
const IN_PROGRESS: Outcome = Outcome::Refused("idempotency_key_in_progress", "unknown", "wait");
const CONFLICT: Outcome =
    Outcome::Refused("idempotency_key_conflict", "not_committed", "use_new_key");

const HOUR: Duration = Duration::from_secs(3600);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn faulty(change: impl FnOnce(&mut Policy)) -> Server<Faulty> {
    Server::on(Faulty::default(), change)
}

/// Another process on the same store.
fn elsewhere(server: &Server<Faulty>) -> Server<Faulty> {
    let elsewhere = Server::on(Faulty::clone(server.engine.store()), |_| {});
    elsewhere.under(|policy| policy.clone_from(&server.policy))
}

impl<S: Store> Server<S> {
    pub(crate) async fn attempt(&self, key: &str) -> LeaseAttempt<S> {
        let request = self.request(self.identity(Some(key), "{}"));
        match self.engine.begin_lease(request).await {
            Begun::Attempt(attempt) => attempt,
            other => panic!("expected an attempt, found {other:?}"),
        }
    }

    /// A call whose handler asks for its lease.
    pub(crate) async fn call_handled(
        &self,
        key: &str,
        handler: impl AsyncFnOnce(LeaseHandle) -> Reply,
    ) -> Outcome {
        self.call_with(self.request(self.identity(Some(key), "{}")), handler)
            .await
    }

    /// A call that may have acted, and leaves its record in doubt.
    pub(super) async fn leave_in_doubt(&self, key: &str) {
        let executions = self.executions();
        let timed_out = ends(ResultKind::ProtocolError, "timed out");
        let left = self.call(key, timed_out).await;
        assert!(
            matches!(&left, Outcome::LeftInDoubt(text, _) if text == "timed out"),
            "{left:?}"
        );
        assert_eq!(self.executions(), executions + 1);
    }
}

impl<S: OperatorStore> Server<S> {
    /// The token in the record of a key.
    async fn token(&self, key: &str) -> i64 {
        let id = self.identity(Some(key), "{}").id;
        self.engine.show(id).await.unwrap().expect("a record").token
    }
}

async fn ends(kind: ResultKind, text: &str) -> Reply {
    Reply::new(kind, text)
}

/// What a handler does that must not run.
async fn never() -> Reply {
    panic!("this handler must not run")
}

/// Lets every task that can go on do so, without time passing.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Starts a call in a task of its own.
fn start<S: Store>(
    server: &Server<S>,
    key: &'static str,
    handler: impl Future<Output = Reply> + Send + 'static,
) -> tokio::task::JoinHandle<Outcome> {
    let server = server.clone();
    tokio::spawn(async move { server.call(key, handler).await })
}
