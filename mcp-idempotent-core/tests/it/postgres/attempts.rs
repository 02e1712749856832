//! Whole attempts in lease mode whose handlers write in a transaction of their own.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcp_idempotent_core::{
    Answer, Begun, Borrowed, Bytes, CallInfo, CanonicalArguments, Engine, HandlerResult,
    IdempotencyKey, LeaseHandle, OnError, Policy, Request, ResultKind, Scope,
    store::postgres::PostgresStore,
};
use sqlx::{PgConnection, postgres::PgPoolOptions};
use tokio::sync::Barrier;

use super::database::{Database, options};

struct Reply(ResultKind);

impl HandlerResult for Reply {
    fn kind(&self) -> ResultKind {
        self.0
    }

    fn encode(&self) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
        Ok(Bytes::from_static(b"done"))
    }
}

struct Server {
    engine: Engine<PostgresStore>,
    policy: Arc<Policy>,
    executions: AtomicUsize,
}

impl Server {
    fn on(store: PostgresStore, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = Policy::default();
        policy.on_error = OnError::InDoubt;
        change(&mut policy);
        Self {
            engine: Engine::new("tests", store),
            policy: Arc::new(policy),
            executions: AtomicUsize::new(0),
        }
    }

    async fn call(
        &self,
        key: &str,
        handler: impl AsyncFnOnce(LeaseHandle) -> ResultKind,
    ) -> String {
        let scope = Scope::new("alice");
        let key = IdempotencyKey::new(key).unwrap();
        let arguments = CanonicalArguments::new(None, &[]);
        let identity = self.engine.identify(&scope, Some(&key), "tool", &arguments);
        let request = Request::new(CallInfo::new("tool", scope), identity, &self.policy);
        let answer = match self.engine.begin(request).await {
            Begun::Answer(answer) => answer,
            Begun::Attempt(mut attempt) => {
                let handle = attempt.handle();
                self.executions.fetch_add(1, Ordering::SeqCst);
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

    fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }
}

async fn begin(handle: &LeaseHandle) -> Borrowed<PostgresStore> {
    handle.begin().await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

/// The database, and a server on a pool of this many connections.
async fn server(connections: u32, change: impl FnOnce(&mut Policy)) -> (Database, Server) {
    let database = Database::new().await;
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .connect_lazy_with(options());
    let store = PostgresStore::builder(pool)
        .with_schema(&database.schema)
        .build()
        .unwrap();
    (database, Server::on(store, change))
}

#[tokio::test]
async fn a_key_is_not_freed_for_a_handler_that_committed_its_transaction_itself() {
    let (database, server) = server(2, |policy| policy.on_error = OnError::Release).await;
    for (key, kind) in [
        ("not executed", ResultKind::NotExecuted),
        ("released", ResultKind::ProtocolError),
        ("another round", ResultKind::InputRequired),
        ("recorded", ResultKind::ErrorResult),
        ("interrupted", ResultKind::Interrupted),
    ] {
        let key = key.replace(' ', "-");
        let before = (server.executions(), database.effects().await.len());
        for _ in 0..2 {
            let answer = server
                .call(&key, async |handle| {
                    let mut transaction = begin(&handle).await;
                    database.write(&mut transaction, &key).await;
                    run(&mut transaction, "COMMIT").await;
                    kind
                })
                .await;
            assert_eq!(answer, "idempotency_outcome_unknown", "{key}");
        }
        let after = (server.executions(), database.effects().await.len());
        assert_eq!(after, (before.0 + 1, before.1 + 1), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_transactions_at_once_on_sixteen_connections_complete() {
    let (database, server) = server(16, |_| {}).await;
    let (database, server) = (Arc::new(database), Arc::new(server));
    let all = Arc::new(Barrier::new(16));
    let calls: Vec<_> = (0..16)
        .map(|n| {
            let (database, server) = (Arc::clone(&database), Arc::clone(&server));
            let all = Arc::clone(&all);
            tokio::spawn(async move {
                let key = format!("key-{n}");
                let handler = async |handle: LeaseHandle| {
                    let mut transaction = begin(&handle).await;
                    all.wait().await;
                    database.write(&mut transaction, &key).await;
                    ResultKind::Success
                };
                server.call(&key, handler).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), "executed");
    }
    assert_eq!(database.effects().await.len(), 16);
}

#[tokio::test]
async fn a_panic_under_an_open_transaction_writes_nothing_and_keeps_no_connection() {
    let (database, server) = server(1, |_| {}).await;
    let panics = async |handle: LeaseHandle| {
        let mut transaction = begin(&handle).await;
        database.write(&mut transaction, "never").await;
        panic!("while it holds it")
    };
    assert_eq!(server.call("panics", panics).await, "executed");
    let writes = async |handle: LeaseHandle| {
        let mut transaction = begin(&handle).await;
        database.write(&mut transaction, "once").await;
        ResultKind::Success
    };
    assert_eq!(server.call("writes", writes).await, "executed");
    assert_eq!(database.effects().await, ["once"]);
    let again = server
        .call("panics", async |_| panic!("it runs again"))
        .await;
    assert_eq!(again, "idempotency_outcome_unknown");
}
