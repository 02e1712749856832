//! An operator resolves a call's record under the previous secret while it runs under the new one.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Bytes, Engine, InDoubtCall, LeaseHandle, OnDoubt, ResultKind, Verdict, Verify,
    engine::NotCurrent,
    store::{
        Audit, Completion, OperatorStore, RecordQuery, RecordStatus, Resolution, Resolved,
        postgres::PostgresStore,
    },
};
use tokio::sync::oneshot;

use super::{
    super::{
        Outcome, Reply, Server, in_doubt,
        leases::{IN_DOUBT, store::Faulty},
        own, replayed, succeed, until,
    },
    doubt,
    sides::{Both, CHANGES, Effects as _, Transactions},
};

const ASK_AGAIN: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "retry_same_key");

fn resolutions() -> [(Resolution, Outcome); 3] {
    let result = Bytes::from_static(b"by hand");
    let completion = Completion::new(Some(result), std::time::Duration::from_secs(3600));
    [
        (Resolution::Committed(completion), replayed("by hand")),
        (Resolution::NotCommitted, own("two")),
        (Resolution::Release, own("two")),
    ]
}

fn audit() -> Audit {
    Audit::new("ada", "seen in their books").unwrap()
}

/// Resolves the record of a key as this server knows it.
async fn resolve(server: &Server<Faulty>, key: &str, resolution: &Resolution) {
    let id = server.identity(Some(key), "{}").id;
    let token = server.engine.show(id).await.unwrap().unwrap().token;
    let resolved = server.engine.resolve(id, token, resolution, &audit()).await;
    assert!(matches!(resolved, Ok(Resolved::Done(_))));
}

#[tokio::test(start_paused = true)]
async fn a_resolution_under_the_previous_secret_fences_the_running_attempt() {
    for (resolution, retry) in resolutions() {
        for (old, new) in doubt::sides() {
            let (lost, noticed) = oneshot::channel();
            let late = tokio::spawn({
                let new = new.clone();
                async move {
                    let handler = async |handle: LeaseHandle| {
                        handle.lost().await;
                        lost.send(()).unwrap();
                        Reply::new(ResultKind::Success, "late")
                    };
                    new.call_handled("k", handler).await
                }
            });
            until(|| new.executions() == 1).await;
            resolve(&old, "k", &resolution).await;
            let noticed = tokio::time::timeout(2 * new.policy.lease, noticed).await;
            noticed.expect("its token fires").unwrap();
            assert_eq!(late.await.unwrap(), IN_DOUBT, "{resolution:?}");
            assert_eq!(old.call("k", succeed("two")).await, retry);
            assert_ne!(new.call("k", succeed("three")).await, own("three"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_comes_before_the_loss_is_noticed_is_not_recorded_either() {
    for (resolution, retry) in resolutions() {
        for (old, new) in doubt::sides() {
            let handler = async |handle: LeaseHandle| {
                handle.ensure_current().await.unwrap();
                resolve(&old, "k", &resolution).await;
                Reply::new(ResultKind::Success, "late")
            };
            assert_eq!(new.call_handled("k", handler).await, IN_DOUBT);
            assert_eq!(old.call("k", succeed("two")).await, retry);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_asks_is_told_of_a_resolution_under_the_previous_secret() {
    for (old, new) in doubt::sides() {
        let handler = async |handle: LeaseHandle| {
            resolve(&old, "k", &Resolution::Release).await;
            let asked = handle.ensure_current().await;
            assert!(matches!(asked, Err(NotCurrent::Fenced)), "{asked:?}");
            Reply::new(ResultKind::NotExecuted, "stopped")
        };
        assert_eq!(new.call_handled("k", handler).await, own("stopped"));
        assert_eq!(old.call("k", succeed("two")).await, own("two"));
        assert_eq!(new.call("k", succeed("three")).await, replayed("two"));
    }
}

/// Another system that says what it is told to.
struct Told(Mutex<Option<oneshot::Receiver<Verdict>>>, AtomicUsize);

impl Verify for Told {
    fn verify<'a>(&'a self, _: &'a InDoubtCall) -> BoxFuture<'a, Verdict> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let told = self.0.lock().unwrap().take().unwrap();
        Box::pin(async { told.await.unwrap() })
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_has_resolved_under_the_previous_secret_is_not_run_on_an_old_finding() {
    for verdict in [
        Verdict::NotCommitted,
        Verdict::Committed(Bytes::from_static(b"found")),
    ] {
        for (old, new) in doubt::sides() {
            let new = new.under(|policy| policy.on_doubt = OnDoubt::Verify);
            assert_eq!(doubt::fail(&old, "k").await, in_doubt("did it act?"));
            let (tell, told) = oneshot::channel();
            let told = Told(Mutex::new(Some(told)), AtomicUsize::new(0));
            let request = new
                .request(new.identity(Some("k"), "{}"))
                .with_verify(&told);
            let resolved = async {
                until(|| told.1.load(Ordering::SeqCst) == 1).await;
                let [(committed, _), ..] = resolutions();
                resolve(&old, "k", &committed).await;
                tell.send(verdict.clone()).unwrap();
            };
            let (answer, ()) = tokio::join!(new.call_as(request, succeed("two")), resolved);
            assert_eq!(answer, ASK_AGAIN, "{verdict:?}");
            assert_eq!(new.executions(), 0);
            assert_eq!(new.call("k", succeed("three")).await, replayed("by hand"));
        }
    }
}

#[tokio::test]
async fn a_resolution_under_the_previous_secret_stops_the_commit_of_a_transaction() {
    let change = CHANGES[1];
    for (resolution, _) in resolutions() {
        let database = crate::postgres::database::Database::new().await;
        let store = || database.another_process_at_home(4);
        let both = Both::new(change.0, change.1, store, Transactions).await;
        let begun = both
            .new
            .engine
            .begin_transaction(both.new.request(1, false));
        let (mut transaction, attempt) = begun.await.ok().unwrap();
        let reply = Reply::new(ResultKind::Success, "late");
        attempt
            .run(async {
                PostgresStore::write(&mut transaction).await;
                resolve_all(&both.old.engine, &resolution).await;
            })
            .await
            .unwrap();
        let answer = attempt.finish(Some(transaction), &reply).await;
        let late = Outcome::from(answer, Some(reply));
        assert!(
            matches!(late, Outcome::Refused("idempotency_key_in_progress", ..)),
            "{late:?}"
        );
        assert_eq!(both.effects().await, 0);
        // The previous version and this one agree about what the operator decided.
        let answer = both.old.call(1, false).await;
        assert_eq!(both.new.call(1, false).await, answer);
        let runs = usize::from(!matches!(resolution, Resolution::Committed(_)));
        assert_eq!(both.effects().await, runs);
    }
}

/// Resolves every call that runs. Only the guard can be seen: a transaction has no record yet.
async fn resolve_all<S: OperatorStore>(engine: &Engine<S>, resolution: &Resolution) {
    let mut query = RecordQuery::default();
    query.status = Some(RecordStatus::InProgress);
    let running = engine.list(&query).await.unwrap();
    assert_eq!(running.len(), 1);
    let (id, token) = (running[0].id, running[0].token);
    let resolved = engine.resolve(id, token, resolution, &audit()).await;
    assert!(matches!(resolved, Ok(Resolved::Done(_))));
}
