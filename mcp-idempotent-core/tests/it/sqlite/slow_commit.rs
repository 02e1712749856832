//! As on a disk that stands still: a result was written before its lease ended, and its commit takes longer.

use std::sync::{Arc, Condvar, Mutex};

use mcp_idempotent_core::{
    Wait,
    store::{Inspected, LeaseEnd, StoreErrorKind},
};

use super::*;
use crate::engine::{Outcome, Server, own, succeed};

/// Holds up whoever has changed the record of a call, before the commit.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    somebody_waits: bool,
}

impl Gate {
    /// Called on the connection's own thread.
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        while state.is_closed {
            state.somebody_waits = true;
            state = self.opened.wait(state).unwrap();
        }
    }

    fn close(self: &Arc<Self>) -> Closed {
        self.state.lock().unwrap().is_closed = true;
        Closed(Arc::clone(self))
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().unwrap().somebody_waits
    }

    /// A store that passes this gate whenever it has changed the record of a call.
    fn builder(self: &Arc<Self>, database: &Database) -> SqliteStoreBuilder {
        let gate = Arc::clone(self);
        let options = SqlitePoolOptions::new().after_connect(move |connection, _| {
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                let mut handle = connection.lock_handle().await?;
                handle.create_collation("gate", move |left, right| {
                    gate.pass();
                    left.cmp(right)
                })?;
                drop(handle);
                sqlx::raw_sql(
                    "CREATE TEMP TRIGGER gate AFTER UPDATE ON mcp_idempotent_record \
                     WHEN NEW.tool NOT LIKE 'mcp-idempotent/%' BEGIN SELECT NEW.tool < '' COLLATE gate; END",
                )
                .execute(connection)
                .await?;
                Ok(())
            })
        });
        let file = SqliteConnectOptions::new().filename(database.path());
        SqliteStore::builder(options.connect_lazy_with(file))
    }

    fn store(self: &Arc<Self>, database: &Database) -> SqliteStore {
        self.builder(database).build().unwrap()
    }
}

/// Opens the gate when it is dropped.
struct Closed(Arc<Gate>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().is_closed = false;
        self.0.opened.notify_all();
    }
}

/// Waits for the writer, but not for long.
fn impatient(database: &Database) -> SqliteStore {
    let builder = database.builder();
    let bound = Duration::from_millis(200);
    builder.with_wait_bound(bound).build().unwrap()
}

/// What everybody sees while a result of `claim` waits for its commit and the lease has ended, and what those see
/// who wait for that commit.
async fn nobody_is_told_of_a_doubt(
    database: &Database,
    own: &SqliteStore,
    claim: &Claim,
    token: i64,
    gate: Closed,
) {
    let is_in_progress = |state: RecordState| matches!(state, RecordState::InProgress { .. });
    let other = impatient(database);
    let seen = state(&other, claim).await.unwrap();
    assert!(is_in_progress(seen.clone()), "looked up: {seen:?}");
    let seen = other.inspect(claim).await.unwrap();
    assert!(
        matches!(&seen, Inspected::InProgress)
            || matches!(&seen, Inspected::Found(found) if is_in_progress(found.state.clone())),
        "inspected: {seen:?}"
    );
    let seen = other.claim(claim).await.unwrap();
    assert!(
        matches!(&seen, Claimed::Found(found) if is_in_progress(found.state.clone())),
        "claimed: {seen:?}"
    );
    let seen = other.begin(&claim.call, Some(claim)).await.unwrap();
    assert!(
        matches!(&seen, Claimed::Found(found) if is_in_progress(found.state.clone())),
        "begun: {seen:?}"
    );
    let error = other.take_over(claim, token).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
    // In this process too, and for as long as it takes.
    let waiting: Vec<_> = [own.clone(), database.store()]
        .into_iter()
        .map(|store| {
            let claim = claim.clone();
            tokio::spawn(async move {
                let (seen, taken, claimed) = tokio::join!(
                    state(&store, &claim),
                    store.take_over(&claim, token),
                    found(&store, &claim)
                );
                (seen, taken.unwrap(), response(&claimed).to_vec())
            })
        })
        .collect();
    tokio::task::yield_now().await;
    drop(gate);
    for waited in waiting {
        let (seen, taken, claimed) = waited.await.unwrap();
        assert!(
            matches!(seen, Some(RecordState::Completed { .. })),
            "{seen:?}"
        );
        assert!(taken.is_none(), "{taken:?}");
        assert_eq!(claimed, b"sent");
    }
}

#[tokio::test]
async fn a_completion_whose_commit_outlasts_the_lease_is_in_progress_and_never_in_doubt() {
    let database = Database::new().await;
    let gate = Arc::<Gate>::default();
    let store = gate.store(&database);
    let mut claim = claim(1);
    claim.lease = Duration::from_secs(2);
    let lease = lease(&store, &claim).await;
    let closed = gate.close();
    let (ended, ()) = tokio::join!(store.complete(&lease, completion(b"sent")), async {
        until(|| async { gate.somebody_waits() }).await;
        until(|| lapsed(&database)).await;
        nobody_is_told_of_a_doubt(&database, &store, &claim, lease.token, closed).await;
    });
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
}

#[tokio::test]
async fn a_transaction_whose_commit_outlasts_its_lease_is_in_progress_and_never_in_doubt() {
    let database = Database::new().await;
    let gate = Arc::<Gate>::default();
    let store = gate.store(&database);
    let claim = claim(1);
    let lease = lease(&store, &claim).await;
    database.age(lease.id, claim.lease).await;
    let mut transaction = begin_unclaimed(&store).await;
    // Only in this transaction is it the time before the lease ended.
    sqlx::query("UPDATE mcp_idempotent_record SET lease_until = lease_until + 120000000")
        .execute(&mut *transaction)
        .await
        .unwrap();
    pay(&mut transaction, "sent").await;
    let closed = gate.close();
    let end = End::Complete(lease.clone(), completion(b"sent"));
    let (ended, ()) = tokio::join!(store.end(transaction, None, end), async {
        until(|| async { gate.somebody_waits() }).await;
        nobody_is_told_of_a_doubt(&database, &store, &claim, lease.token, closed).await;
    });
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    assert_eq!(database.payments().await, ["sent"]);
}

#[tokio::test]
async fn callers_of_a_call_whose_commit_outlasts_its_lease_get_its_result() {
    let database = Database::new().await;
    let gate = Arc::<Gate>::default();
    let limit = Duration::from_millis(100);
    let store = gate.builder(&database).with_transaction_limit(limit);
    let own_process = Server::on(store.build().unwrap(), |policy| {
        policy.lease = Duration::from_secs(2);
    });
    let another = Server::on(impatient(&database), |policy| {
        policy.wait = Wait::UpTo(Duration::from_millis(100));
    });
    let closed = Mutex::new(None);
    let handler = async |_| {
        *closed.lock().unwrap() = Some(gate.close());
        succeed("done").await
    };
    let (answer, joined) = tokio::join!(own_process.call_handled("k", handler), async {
        until(|| async { gate.somebody_waits() }).await;
        let (joined, ()) = tokio::join!(own_process.call("k", succeed("twice")), async {
            until(|| lapsed(&database)).await;
            let told = another.call("k", succeed("twice")).await;
            let is_in_progress =
                matches!(told, Outcome::Refused("idempotency_key_in_progress", ..));
            assert!(is_in_progress, "{told:?}");
            drop(closed.lock().unwrap().take());
        });
        joined
    });
    assert_eq!(answer, own("done"));
    assert_eq!(joined, Outcome::Joined("done".to_owned()));
    let replayed = another.call("k", succeed("twice")).await;
    assert_eq!(replayed, Outcome::Replayed("done".to_owned()));
}

/// The renewal is given up by its own process, and happens nevertheless.
#[tokio::test]
async fn a_lease_whose_renewal_waits_for_its_commit_is_in_progress() {
    let database = Database::new().await;
    let gate = Arc::<Gate>::default();
    let store = gate.store(&database);
    let mut claim = claim(1);
    claim.lease = Duration::from_secs(2);
    let lease = lease(&store, &claim).await;
    let closed = gate.close();
    let renewal = tokio::spawn({
        let (store, lease) = (store.clone(), lease.clone());
        async move { store.renew(&lease, Duration::from_secs(60)).await }
    });
    until(|| async { gate.somebody_waits() }).await;
    renewal.abort();
    until(|| lapsed(&database)).await;
    let seen = state(&impatient(&database), &claim).await;
    assert!(
        matches!(seen, Some(RecordState::InProgress { .. })),
        "{seen:?}"
    );
    drop(closed);
    let seen = state(&store, &claim).await;
    assert!(
        matches!(seen, Some(RecordState::InProgress { lease_remaining }) if !lease_remaining.is_zero()),
        "{seen:?}"
    );
    let ended = store.complete(&lease, completion(b"sent")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
}

/// No result can be on its way, so nobody waits for the writer.
#[tokio::test]
async fn a_call_that_was_left_in_doubt_is_told_so_beside_a_writer() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    let held = lease(&store, &claim(1)).await;
    store.abandon(&held).await.unwrap();
    let writing = begin_unclaimed(&store).await;
    for store in [&store, &other] {
        let seen = state(store, &claim(1)).await;
        assert!(
            matches!(seen, Some(RecordState::InDoubt { .. })),
            "{seen:?}"
        );
        let seen = store.claim(&claim(1)).await.unwrap();
        assert!(
            matches!(&seen, Claimed::Found(found) if matches!(found.state, RecordState::InDoubt { .. })),
            "{seen:?}"
        );
    }
    store.end(writing, None, End::RollBack).await;
}

/// The writer may be about to commit the result; when it has ended, it is known that it was not.
#[tokio::test]
async fn a_lapsed_lease_is_in_doubt_once_the_writer_in_front_has_ended() {
    let database = Database::new().await;
    let (store, other) = (database.store(), database.store());
    let claim = claim(1);
    let lapsed = lease(&store, &claim).await;
    database.age(lapsed.id, claim.lease).await;
    let writing = begin_unclaimed(&store).await;
    let seen = state(&impatient(&database), &claim).await;
    assert!(
        matches!(seen, Some(RecordState::InProgress { .. })),
        "{seen:?}"
    );
    let waiting: Vec<_> = [store.clone(), other]
        .into_iter()
        .map(|store| {
            let claim = claim.clone();
            tokio::spawn(async move {
                let (seen, claimed) = tokio::join!(state(&store, &claim), found(&store, &claim));
                [seen, Some(claimed.state)]
            })
        })
        .collect();
    tokio::task::yield_now().await;
    store.end(writing, None, End::RollBack).await;
    for waited in waiting {
        for seen in waited.await.unwrap() {
            assert!(
                matches!(seen, Some(RecordState::InDoubt { token, .. }) if token == lapsed.token),
                "{seen:?}"
            );
        }
    }
    // Nothing is left open.
    super::call(&store, &super::claim(2), "next", b"").await;
    assert_eq!(database.payments().await, ["next"]);
}

/// Whether a lease has ended, by the clock and by what everybody sees.
async fn lapsed(database: &Database) -> bool {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM mcp_idempotent_record WHERE lease_until <= \
         CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)",
    )
    .fetch_one(&database.pool(1))
    .await
    .unwrap()
}
