//! A process with both secrets dies between its own record and the one under the previous secret.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Engine, Policy, Record, Store, StoreError, TransactionStore,
    store::{CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd, Reach},
};

use super::{
    super::{Outcome, own, replayed, secret},
    sides::{Both, CHANGES, Effects, Leases, Mode, Side, Transactions},
};

const UNKNOWN: Outcome = Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");

/// A store of a process that ends at some point: it is never answered from there on.
#[derive(Clone)]
struct Ends<S> {
    store: S,
    /// When a lease is completed.
    completing: Arc<Point>,
    /// When a transaction is ended.
    ending: Arc<Point>,
}

impl<S> Ends<S> {
    fn new(store: S) -> Self {
        Self {
            store,
            completing: Arc::default(),
            ending: Arc::default(),
        }
    }
}

#[derive(Default)]
struct Point {
    set: AtomicBool,
    reached: AtomicBool,
}

impl Point {
    fn set(&self) {
        self.set.store(true, Ordering::SeqCst);
    }

    fn is_reached(&self) -> bool {
        self.reached.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        if self.set.load(Ordering::SeqCst) {
            self.reached.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    }
}

impl<S: Store> Store for Ends<S> {
    fn reach(&self) -> Reach {
        self.store.reach()
    }
    fn transaction_limit(&self) -> Option<Duration> {
        self.store.transaction_limit()
    }
    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        self.store.look_up(claim).await
    }
    async fn inspect(&self, claim: &Claim) -> Result<Inspected, StoreError> {
        self.store.inspect(claim).await
    }
    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        self.store.claim(claim).await
    }
    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        self.store.take_over(claim, token).await
    }
    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.renew(lease, period).await
    }
    async fn complete(&self, lease: &Lease, with: Completion) -> Result<LeaseEnd, StoreError> {
        self.completing.pass().await;
        self.store.complete(lease, with).await
    }
    async fn release(&self, lease: &Lease, keep: Duration) -> Result<LeaseEnd, StoreError> {
        self.store.release(lease, keep).await
    }
    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        self.store.abandon(lease).await
    }
    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.store.sweep(limit).await
    }
}

impl<S: TransactionStore> TransactionStore for Ends<S> {
    type Connection = S::Connection;
    type Transaction = S::Transaction;

    async fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> Result<Claimed<S::Transaction>, StoreError> {
        self.store.begin(call, claim).await
    }

    async fn end(&self, transaction: S::Transaction, claim: Option<&Claim>, end: End) -> Ended {
        self.ending.pass().await;
        self.store.end(transaction, claim, end).await
    }
}

impl<S: Effects> Effects for Ends<S> {
    fn write(connection: &mut Self::Connection) -> BoxFuture<'_, ()> {
        S::write(connection)
    }

    fn count(connection: &mut Self::Connection) -> BoxFuture<'_, i64> {
        S::count(connection)
    }
}

/// Lets the new side make its first call, and drops it at this point.
async fn interrupted<S: Store, M: Mode<Ends<S>>>(both: &Both<Ends<S>, M>, point: &Point) {
    point.set();
    let mut call = Box::pin(both.new.outcome(1, false));
    for _ in 0..2000 {
        tokio::select! {
            biased;
            outcome = &mut call => panic!("it ended as {outcome:?}"),
            () = tokio::time::sleep(Duration::from_millis(2)) => {}
        }
        if point.is_reached() {
            return;
        }
    }
    panic!("it did not come so far");
}

fn short(policy: &mut Arc<Policy>) {
    let policy = Arc::make_mut(policy);
    policy.lease = Duration::from_millis(400);
    policy.heartbeat = Some(Duration::from_millis(100));
}

/// The same process, started anew.
fn anew<S: Store, M: Copy>(
    side: &Side<Ends<S>, M>,
    store: S,
    (old, new): (Option<&str>, Option<&str>),
) -> Side<Ends<S>, M> {
    let builder =
        Engine::builder("tests", Ends::new(store)).with_previous_secret(old.map(secret::secret));
    let builder = match new {
        Some(new) => builder.with_secret(secret::secret(new)),
        None => builder,
    };
    side.on(builder.build())
}

async fn a_committed_call_is_found<S: Effects>(store: impl Fn() -> S) {
    let change = CHANGES[0];
    let mut both = Both::new(change.0, change.1, || Ends::new(store()), Transactions).await;
    short(&mut both.old.policy);
    short(&mut both.new.policy);
    let point = Arc::clone(&both.new.engine.store().completing);
    interrupted(&both, &point).await;
    assert_eq!(both.effects().await, 1);
    // It waits until the lease of the process that ended has ended.
    assert_eq!(both.old.outcome(1, false).await, UNKNOWN);
    let again = anew(&both.new, store(), change);
    assert_eq!(again.outcome(1, false).await, replayed("execution 0"));
    assert_eq!(both.old.outcome(1, false).await, replayed("execution 0"));
    assert_eq!(both.effects().await, 1);
}

async fn a_call_that_was_not_committed_runs<S: Effects>(store: impl Fn() -> S) {
    let change = CHANGES[1];
    let mut both = Both::new(change.0, change.1, || Ends::new(store()), Transactions).await;
    short(&mut both.old.policy);
    short(&mut both.new.policy);
    let point = Arc::clone(&both.new.engine.store().ending);
    interrupted(&both, &point).await;
    assert_eq!(both.old.outcome(1, false).await, UNKNOWN);
    let again = anew(&both.new, store(), change);
    assert_eq!(again.outcome(1, false).await, own("execution 1"));
    assert_eq!(both.old.outcome(1, false).await, replayed("execution 1"));
    assert_eq!(both.effects().await, 1);
}

#[tokio::test]
async fn an_end_between_the_commit_and_the_previous_record_is_found_in_sqlite() {
    let file = super::sides::SqliteFile::new().await;
    a_committed_call_is_found(|| file.with_limit(Duration::from_millis(200))).await;
}

#[tokio::test]
async fn an_end_between_the_commit_and_the_previous_record_is_found_in_postgres() {
    let database = crate::postgres::database::Database::new().await;
    a_committed_call_is_found(|| database.another_process_at_home(4)).await;
}

#[tokio::test]
async fn an_end_before_the_commit_lets_the_call_run_again_in_sqlite() {
    let file = super::sides::SqliteFile::new().await;
    a_call_that_was_not_committed_runs(|| file.with_limit(Duration::from_millis(200))).await;
}

#[tokio::test]
async fn an_end_before_the_commit_lets_the_call_run_again_in_postgres() {
    let database = crate::postgres::database::Database::new().await;
    a_call_that_was_not_committed_runs(|| database.another_process_at_home(4)).await;
}

#[tokio::test]
async fn an_end_between_the_two_records_of_a_lease_is_found() {
    let file = super::sides::SqliteFile::new().await;
    let store = || file.with_limit(Duration::from_millis(100));
    let change = CHANGES[0];
    let mut both = Both::new(change.0, change.1, || Ends::new(store()), Leases).await;
    short(&mut both.old.policy);
    short(&mut both.new.policy);
    let point = Arc::clone(&both.new.engine.store().completing);
    interrupted(&both, &point).await;
    // Neither record was completed: nobody knows.
    assert_eq!(both.old.outcome(1, false).await, UNKNOWN);
    let again = anew(&both.new, store(), change);
    assert_eq!(again.outcome(1, false).await, UNKNOWN);
    assert_eq!(both.effects().await, 1);
}
