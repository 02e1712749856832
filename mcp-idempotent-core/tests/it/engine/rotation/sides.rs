//! The two sides, on any store and in both modes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, IdempotencyKey, OnError, Policy, Request,
    ResultKind, Scope, Store, TransactionStore, Wait,
    store::{Claimed, postgres::PostgresStore, sqlite::SqliteStore},
};

use super::super::{Outcome, Reply, secret};

/// The previous secret, and the new one.
pub(super) const CHANGES: [(Option<&str>, Option<&str>); 3] = [
    (None, Some(secret::A)),
    (Some(secret::A), Some(secret::B)),
    (Some(secret::A), None),
];

pub(super) struct Both<S, M> {
    pub(super) old: Side<S, M>,
    pub(super) new: Side<S, M>,
}

/// One process.
pub(super) struct Side<S, M> {
    pub(super) engine: Engine<S>,
    pub(super) policy: Arc<Policy>,
    ran: Arc<AtomicUsize>,
    mode: M,
}

/// How a call is run. The handler's answer is its own number among all that ran.
pub(super) trait Mode<S: Store>: Copy + Send + Sync + 'static {
    fn run<'a>(
        &'a self,
        engine: &'a Engine<S>,
        request: Request<'a>,
        ran: &'a AtomicUsize,
    ) -> BoxFuture<'a, Outcome>;

    /// How many effects there are.
    fn effects<'a>(&'a self, store: &'a S, ran: &'a AtomicUsize) -> BoxFuture<'a, usize>;
}

impl<S: Store, M: Mode<S>> Both<S, M> {
    pub(super) async fn new(
        old: Option<&str>,
        new: Option<&str>,
        store: impl Fn() -> S,
        mode: M,
    ) -> Self {
        let ran = Arc::default();
        let previous = Engine::builder("tests", store());
        let next = Engine::builder("tests", store()).with_previous_secret(old.map(secret::secret));
        let previous = match old {
            Some(old) => previous.with_secret(secret::secret(old)),
            None => previous,
        };
        let next = match new {
            Some(new) => next.with_secret(secret::secret(new)),
            None => next,
        };
        let side = |engine| Side {
            engine,
            policy: policy(),
            ran: Arc::clone(&ran),
            mode,
        };
        let both = Self {
            old: side(previous.build()),
            new: side(next.build()),
        };
        both.old.engine.verify_secret().await.unwrap();
        both.new.engine.verify_secret().await.unwrap();
        both
    }

    pub(super) async fn effects(&self) -> usize {
        let store = self.old.engine.store();
        self.old.mode.effects(store, &self.old.ran).await
    }
}

fn policy() -> Arc<Policy> {
    let mut policy = Policy::default();
    policy.on_error = OnError::InDoubt;
    policy.wait = Wait::UpTo(Duration::from_secs(30));
    Arc::new(policy)
}

impl<S: Store, M: Copy> Side<S, M> {
    /// A process without a secret, under the policy as changed.
    pub(super) fn alone(
        store: S,
        mode: M,
        ran: &Arc<AtomicUsize>,
        change: impl FnOnce(&mut Policy),
    ) -> Self {
        let mut policy = Policy::clone(&policy());
        change(&mut policy);
        Self {
            engine: Engine::new("tests", store),
            policy: Arc::new(policy),
            ran: Arc::clone(ran),
            mode,
        }
    }
}

impl<S, M: Copy> Side<S, M> {
    pub(super) fn on(&self, engine: Engine<S>) -> Self {
        Self {
            engine,
            policy: Arc::clone(&self.policy),
            ran: Arc::clone(&self.ran),
            mode: self.mode,
        }
    }
}

impl<S: Store, M: Mode<S>> Side<S, M> {
    pub(super) fn request(&self, key: usize, derived: bool) -> Request<'_> {
        let scope = Scope::new("alice");
        let text = IdempotencyKey::new(format!("key-{key}")).unwrap();
        self.request_of((!derived).then_some(&text), key, scope)
    }

    fn request_of(&self, key: Option<&IdempotencyKey>, number: usize, scope: Scope) -> Request<'_> {
        let arguments = serde_json::json!({ "number": number });
        let arguments = CanonicalArguments::new(arguments.as_object(), &[]);
        let (engine, policy) = (&self.engine, &self.policy);
        let identity = engine.identify_under(policy, &scope, key, "tool", &arguments);
        Request::new(CallInfo::new("tool", scope), identity, policy)
    }

    /// The call with this number under this key.
    pub(super) fn request_for(&self, key: &str, number: usize) -> Request<'_> {
        let key = IdempotencyKey::new(key).unwrap();
        self.request_of(Some(&key), number, Scope::new("alice"))
    }

    /// The answer to the call with this number under this key.
    pub(super) async fn asked(&self, key: &str, number: usize) -> Outcome {
        let request = self.request_for(key, number);
        self.mode.run(&self.engine, request, &self.ran).await
    }

    pub(super) async fn effects(&self) -> usize {
        self.mode.effects(self.engine.store(), &self.ran).await
    }

    /// The call's answer, no matter which side executed it.
    pub(super) async fn call(&self, key: usize, derived: bool) -> String {
        match self.outcome(key, derived).await {
            Outcome::Own(text) | Outcome::Replayed(text) | Outcome::Joined(text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn outcome(&self, key: usize, derived: bool) -> Outcome {
        let request = self.request(key, derived);
        self.mode.run(&self.engine, request, &self.ran).await
    }
}

fn executed(ran: &AtomicUsize) -> Reply {
    let number = ran.fetch_add(1, Ordering::SeqCst);
    Reply::new(ResultKind::Success, &format!("execution {number}"))
}

#[derive(Clone, Copy)]
pub(super) struct Leases;

impl<S: Store> Mode<S> for Leases {
    fn run<'a>(
        &'a self,
        engine: &'a Engine<S>,
        request: Request<'a>,
        ran: &'a AtomicUsize,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match engine.begin_lease(request).await {
                Begun::Answer(answer) => Outcome::from(answer, None),
                Begun::Attempt(mut attempt) => {
                    let reply = attempt.run(async { executed(ran) }).await.unwrap();
                    Outcome::from(attempt.finish(&reply).await, Some(reply))
                }
                Begun::FailOpen => panic!("the store is there"),
            }
        })
    }

    fn effects<'a>(&'a self, _: &'a S, ran: &'a AtomicUsize) -> BoxFuture<'a, usize> {
        Box::pin(async { ran.load(Ordering::SeqCst) })
    }
}

#[derive(Clone, Copy)]
pub(super) struct Transactions;

/// A store with a table of effects.
pub(super) trait Effects: TransactionStore {
    fn write(connection: &mut Self::Connection) -> BoxFuture<'_, ()>;

    fn count(connection: &mut Self::Connection) -> BoxFuture<'_, i64>;
}

impl<S: Effects> Mode<S> for Transactions {
    fn run<'a>(
        &'a self,
        engine: &'a Engine<S>,
        request: Request<'a>,
        ran: &'a AtomicUsize,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match engine.begin_transaction(request).await {
                Err(answer) => Outcome::from(answer, None),
                Ok((mut transaction, attempt)) => {
                    let reply = executed(ran);
                    attempt.run(S::write(&mut transaction)).await.unwrap();
                    Outcome::from(attempt.finish(Some(transaction), &reply).await, Some(reply))
                }
            }
        })
    }

    fn effects<'a>(&'a self, store: &'a S, _: &'a AtomicUsize) -> BoxFuture<'a, usize> {
        Box::pin(async move {
            let call = CallInfo::new("counts", Scope::new(""));
            match store.begin(&call, None).await.unwrap() {
                Claimed::New(mut transaction) => {
                    usize::try_from(S::count(&mut transaction).await).unwrap()
                }
                _ => panic!("a transaction that claims nothing"),
            }
        })
    }
}

pub(super) use self::sqlite::SqliteFile;

mod sqlite {
    use mcp_idempotent_core::store::sqlite::SqliteStore;
    use std::time::Duration;
    use tempfile::TempDir;

    pub(in super::super) struct SqliteFile {
        pool: sqlx::SqlitePool,
        _directory: TempDir,
    }

    impl SqliteFile {
        pub(in super::super) async fn new() -> Self {
            let directory = TempDir::new().unwrap();
            let store = SqliteStore::open(directory.path().join("data.db"))
                .await
                .unwrap();
            sqlx::query("CREATE TABLE effects (what TEXT)")
                .execute(store.pool())
                .await
                .unwrap();
            Self {
                pool: store.pool().clone(),
                _directory: directory,
            }
        }

        pub(in super::super) fn store(&self) -> SqliteStore {
            self.with_limit(Duration::from_secs(30))
        }

        pub(in super::super) fn with_limit(&self, limit: Duration) -> SqliteStore {
            SqliteStore::builder(self.pool.clone())
                .with_transaction_limit(limit)
                .build()
                .unwrap()
        }
    }
}

macro_rules! effects_of {
    ($store:ty) => {
        impl Effects for $store {
            fn write(connection: &mut Self::Connection) -> BoxFuture<'_, ()> {
                Box::pin(async {
                    let inserted = sqlx::query("INSERT INTO effects VALUES ('effect')");
                    inserted.execute(connection).await.unwrap();
                })
            }

            fn count(connection: &mut Self::Connection) -> BoxFuture<'_, i64> {
                Box::pin(async {
                    let counted = sqlx::query_scalar("SELECT count(*) FROM effects");
                    counted.fetch_one(connection).await.unwrap()
                })
            }
        }
    };
}

effects_of!(SqliteStore);
effects_of!(PostgresStore);
