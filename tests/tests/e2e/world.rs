//! A database, a server on it and a client of that.

use std::{future::Future, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mcp_idempotent_tests::{
    client::{Client, PATIENCE},
    database::{self, Database, Stored},
};
use mcp_idempotent_tower::{Idempotency, IdempotencyBuilder, Policy};
use tokio::sync::Semaphore;

use crate::server::{Call, Server, ToolResult};

pub(crate) struct World<D: Database> {
    pub(crate) database: D,
    pub(crate) store: D::Store,
    pub(crate) server: Server<D>,
    pub(crate) client: Client,
}

impl<D: Database> World<D> {
    /// With a handler, and the default policy.
    pub(crate) async fn new<H>(handler: H) -> Self
    where
        H: for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult>
            + Send
            + Sync
            + 'static,
    {
        Self::with_policy(|_| {}, handler).await
    }

    pub(crate) async fn with_policy<H>(policy: impl FnOnce(&mut Policy), handler: H) -> Self
    where
        H: for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult>
            + Send
            + Sync
            + 'static,
    {
        let database = D::create().await;
        let store = database.store(4);
        Self::on(database, store, policy, handler).await
    }

    pub(crate) async fn on<H>(
        database: D,
        store: D::Store,
        policy: impl FnOnce(&mut Policy),
        handler: H,
    ) -> Self
    where
        H: for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult>
            + Send
            + Sync
            + 'static,
    {
        let mut rules = Policy::default();
        policy(&mut rules);
        let idempotency = engine(store.clone()).with_policy(rules).build().unwrap();
        let server = Server::new(idempotency, handler);
        let client = Client::of(server.clone()).await;
        Self {
            database,
            store,
            server,
            client,
        }
    }

    /// A client of a second server on the same database: nothing but the database is shared.
    pub(crate) async fn another_process(&self) -> Client {
        let store = self.database.store(4);
        let server = self.server.over(engine(store).build().unwrap());
        Client::of(server).await
    }

    pub(crate) async fn assert_effects(&self, expected: &[&str]) {
        assert_eq!(self.database.effects().await, expected);
    }

    pub(crate) async fn assert_records(&self, expected: &[Stored]) {
        assert_eq!(self.database.records().await, expected);
    }

    /// Nothing was kept of a call: no effect, no record.
    pub(crate) async fn assert_nothing_is_left(&self) {
        self.assert_effects(&[]).await;
        self.assert_records(&[]).await;
    }
}

/// All callers are one: what matters here is not whose key it is.
pub(crate) fn engine<S: mcp_idempotent_tower::Store>(store: S) -> IdempotencyBuilder<S> {
    Idempotency::builder("end-to-end", store).with_fixed_scope("tester")
}

/// The effect of handlers that differ in nothing.
pub(crate) fn done(_: &Call) -> String {
    "done".to_owned()
}

/// The effect of handlers that are counted.
pub(crate) fn run(call: &Call) -> String {
    format!("run {}", call.earlier)
}

/// A handler that writes an effect, and answers.
pub(crate) fn writing<D, A>(
    effect: fn(&Call) -> String,
    answer: A,
) -> impl for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult>
where
    D: Database,
    A: Fn(&Call) -> ToolResult + Clone + Send + Sync + 'static,
{
    move |connection, call| {
        let answer = answer.clone();
        Box::pin(async move {
            let written = database::effect::<D>(connection, &effect(&call)).await;
            written.unwrap();
            answer(&call)
        })
    }
}

/// Holds handlers until the test lets them go on.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    arrived: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            arrived: Arc::new(Semaphore::new(0)),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    /// A handler that writes an effect, waits here, and answers.
    pub(crate) fn after<D, A>(
        &self,
        effect: fn(&Call) -> String,
        answer: A,
    ) -> impl for<'c> Fn(&'c mut D::Connection, Call) -> BoxFuture<'c, ToolResult> + use<D, A>
    where
        D: Database,
        A: Fn(&Call) -> ToolResult + Clone + Send + Sync + 'static,
    {
        let gate = self.clone();
        move |connection, call| {
            let (gate, answer) = (gate.clone(), answer.clone());
            Box::pin(async move {
                let written = database::effect::<D>(connection, &effect(&call)).await;
                written.unwrap();
                gate.pass().await;
                answer(&call)
            })
        }
    }

    /// In the handler: says that it is here, and waits.
    pub(crate) async fn pass(&self) {
        self.arrived.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// In the test: one more handler is at the gate.
    pub(crate) async fn arrival(&self) {
        within_patience(self.arrived.acquire())
            .await
            .unwrap()
            .forget();
    }

    /// Lets one handler go on.
    pub(crate) fn open(&self) {
        self.open.add_permits(1);
    }
}

pub(crate) async fn within_patience<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the test waited for something that did not come")
}

/// Looks until `condition` holds.
pub(crate) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    within_patience(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Runs each test on each store.
macro_rules! on_each_store {
    ($($name:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<mcp_idempotent_tests::database::Postgres>().await;
            })*
        }
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name::<mcp_idempotent_tests::database::Sqlite>().await;
            })*
        }
    };
}
pub(crate) use on_each_store;
