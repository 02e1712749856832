//! Sessions that end under a handler's transaction: who is told, and what the caller is answered.

use std::{cell::Cell, sync::Arc, time::Duration};

use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, IdempotencyKey, OnError, Policy, Request,
    ResultKind, Scope, TransactionStore,
    engine::Interrupted,
    store::{
        Claimed, End, Ended,
        postgres::{PostgresStore, PostgresStoreBuilder},
    },
};
use tokio::time::timeout;

use super::{
    database::{Database, begin_unclaimed, claim},
    proxy::{Proxy, proxied},
};
use crate::engine::Reply;

/// After this the server ends a session whose handler sends nothing.
const IDLE: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);

fn soon(store: PostgresStoreBuilder) -> PostgresStoreBuilder {
    store.with_idle_timeout(IDLE).with_answer_timeout(ANSWER)
}

#[tokio::test]
async fn the_end_of_a_session_is_noticed_under_a_handler_that_hangs() {
    let database =
        Database::with_store(|store| store.with_idle_timeout(Duration::from_millis(300))).await;
    let claim = claim("key", "{}");
    let call = &claim.call;
    for claimed in [Some(&claim), None] {
        let Ok(Claimed::New(mut transaction)) = database.store.begin(call, claimed).await else {
            panic!("the key is new");
        };
        let session = database.session(&mut *transaction).await;
        let over = database.store.session_over(&transaction).unwrap();
        let over = tokio::time::timeout(Duration::from_secs(30), over);
        // The handler sends nothing, so the server's idle timeout ends its session.
        over.await.expect("it is noticed");
        database.until_gone(session).await;
        let ended = database
            .store
            .end(transaction, claimed, End::RollBack)
            .await;
        assert!(matches!(ended, Ended::Aborted(_)), "{ended:?}");
    }
}

#[tokio::test]
async fn a_session_that_lives_is_not_taken_for_ended() {
    let database =
        Database::with_store(|store| store.with_idle_timeout(Duration::from_secs(1))).await;
    let claim = claim("key", "{}");
    let mut transaction = database.begin(&claim).await;
    let mut over = database.store.session_over(&transaction).unwrap();
    let looks = async {
        for _ in 0..5 {
            sqlx::raw_sql("SELECT pg_sleep(0.5)")
                .execute(&mut *transaction)
                .await
                .unwrap();
        }
    };
    tokio::select! {
        () = &mut over => panic!("the session lives"),
        () = looks => {}
    }
    let ended = database.commit(transaction, &claim, "done").await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
}

/// Whether the client's side of a session sees its end.
const SEEN_OR_SILENT: [bool; 2] = [true, false];

/// A call whose handler writes, and then hangs. Its session ends, on a connection that may be silent.
struct Call {
    proxy: Proxy,
    database: Database,
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
    silent: bool,
}

impl Call {
    async fn new(silent: bool) -> Self {
        let (proxy, database) = proxied(2, soon).await;
        let mut policy = Policy::default();
        policy.on_error = OnError::InDoubt;
        let engine = Engine::new("tests", database.store.clone());
        engine.verify_secret().await.unwrap();
        Self {
            engine,
            policy: Arc::new(policy),
            proxy,
            database,
            silent,
        }
    }

    fn request(&self) -> Request<'_> {
        let (scope, key) = (Scope::new("alice"), IdempotencyKey::new("key").unwrap());
        let arguments = CanonicalArguments::new(None, &[]);
        let identity = self.engine.identify(&scope, Some(&key), "tool", &arguments);
        Request::new(CallInfo::new("tool", scope), identity, &self.policy)
    }

    /// The handler has written. Its session ends, and it is told.
    async fn hang(&self, session: i32, told: impl Future<Output = ()>, was_told: &Cell<bool>) {
        if self.silent {
            // Nothing is heard of the session any more. The server ends it, because it is idle.
            self.proxy.fall_silent_at(1);
        } else {
            self.database.terminate(session).await;
        }
        told.await;
        was_told.set(true);
        std::future::pending::<()>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_hangs_without_its_session_is_told_and_its_key_comes_free() {
    for silent in SEEN_OR_SILENT {
        let call = Call::new(silent).await;
        let begun = call.engine.begin_transaction(call.request()).await;
        let (mut transaction, attempt) = begun.unwrap();
        let (stop, was_told) = (attempt.stop(), Cell::new(false));
        let session = call.database.session(&mut *transaction).await;
        call.database.write(&mut transaction, "in vain").await;
        let hangs = call.hang(session, stop.told(), &was_told);
        let ran = timeout(PATIENCE, attempt.run(hangs)).await;
        assert_eq!(ran.expect("it is dropped"), Err(Interrupted::SessionEnded));
        assert!(was_told.get(), "its token fires before that");
        let interrupted = Reply::new(ResultKind::Interrupted, "stopped");
        attempt.finish(Some(transaction), &interrupted).await;
        assert!(call.database.effects().await.is_empty());
        let begun = call.engine.begin_transaction(call.request()).await;
        assert!(begun.is_ok(), "the key is free");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_under_a_lease_that_hangs_without_its_session_is_told_and_its_call_is_in_doubt() {
    for silent in SEEN_OR_SILENT {
        let call = Call::new(silent).await;
        let Begun::Attempt(mut attempt) = call.engine.begin_lease(call.request()).await else {
            panic!("the key is new");
        };
        let (handle, was_told) = (attempt.handle(), Cell::new(false));
        let handler = async {
            let mut transaction = handle.begin::<PostgresStore>().await.unwrap();
            let session = call.database.session(&mut *transaction).await;
            call.database.write(&mut transaction, "in vain").await;
            call.hang(session, handle.told_to_stop(), &was_told).await;
        };
        let ran = timeout(PATIENCE, attempt.run(handler)).await;
        assert_eq!(ran.expect("it is dropped"), Err(Interrupted::SessionEnded));
        assert!(was_told.get(), "its token fires before that");
        assert!(!handle.is_lost(), "it has its lease");
        let interrupted = Reply::new(ResultKind::Interrupted, "stopped");
        attempt.finish(&interrupted).await;
        assert!(call.database.effects().await.is_empty());
        let seen = "SELECT bool_and(state = 2) FROM {s}.records WHERE split_part(labels, E'\\n', 1) = 'tool'";
        call.database.until(seen).await;
    }
}

/// No record could tell what became of the COMMIT, so the session is asked before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_a_record_whose_session_ended_before_its_commit_is_not_committed() {
    for silent in SEEN_OR_SILENT {
        let (proxy, database) = proxied(1, soon).await;
        let claim = claim("unused", "{}");
        let mut transaction = begin_unclaimed(&database, &claim, "in vain").await;
        let session = database.session(&mut *transaction).await;
        if silent {
            proxy.fall_silent_at(1);
            // The server ends it, because it is idle.
            database.until_gone(session).await;
        } else {
            // The handler takes longer than the time between two looks at its session.
            sqlx::raw_sql("SELECT pg_sleep(0.4)")
                .execute(&mut *transaction)
                .await
                .unwrap();
            database.terminate(session).await;
        }
        let end = database.store.end(transaction, None, End::CommitUnrecorded);
        let ended = timeout(PATIENCE, end).await.unwrap();
        assert!(matches!(ended, Ended::Aborted(_)), "{silent}: {ended:?}");
        assert!(database.effects().await.is_empty());
    }
}
