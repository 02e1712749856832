//! Whole attempts in lease mode whose handlers write in a transaction of their own.

use std::sync::Arc;

use mcp_idempotent_core::{
    Borrowed, LeaseHandle, OnError, Policy, ResultKind, store::postgres::PostgresStore,
};
use sqlx::PgConnection;
use tokio::sync::Barrier;

use super::database::Database;
use crate::engine::{Reply, Server, in_doubt, leases::IN_DOUBT, own, succeed};

async fn begin(handle: &LeaseHandle) -> Borrowed<PostgresStore> {
    handle.begin().await.unwrap()
}

async fn run(connection: &mut PgConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

/// The database, and a server on a pool of this many connections.
async fn server(
    connections: u32,
    change: impl FnOnce(&mut Policy),
) -> (Database, Server<PostgresStore>) {
    let database = Database::with_pool(connections).await;
    let server = Server::on(database.store.clone(), change);
    (database, server)
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
                .call_handled(&key, async |handle| {
                    let mut transaction = begin(&handle).await;
                    database.write(&mut transaction, &key).await;
                    run(&mut transaction, "COMMIT").await;
                    Reply::new(kind, "done")
                })
                .await;
            assert_eq!(answer, IN_DOUBT, "{key}");
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
                    succeed("done").await
                };
                server.call_handled(&key, handler).await
            })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), own("done"));
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
    assert_eq!(
        server.call_handled("panics", panics).await,
        in_doubt("panicked")
    );
    let writes = async |handle: LeaseHandle| {
        let mut transaction = begin(&handle).await;
        database.write(&mut transaction, "once").await;
        succeed("done").await
    };
    assert_eq!(server.call_handled("writes", writes).await, own("done"));
    assert_eq!(database.effects().await, ["once"]);
    let again = async |_: LeaseHandle| panic!("it runs again");
    assert_eq!(server.call_handled("panics", again).await, IN_DOUBT);
}
