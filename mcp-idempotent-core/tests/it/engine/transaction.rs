//! Transaction mode through the engine, on a SQLite file.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{
    Begun, CallInfo, CanonicalArguments, Engine, IdempotencyKey, Identity, OnDoubt, OnError,
    Policy, Request, ResultKind, Scope, Secret, TransactionAttempt, TransactionStore,
    engine::Interrupted, store::sqlite::SqliteStore,
};
use tempfile::TempDir;

use super::{Outcome, Reply, own, replayed};

/// What a call that runs has in hand.
type Begin = (
    <SqliteStore as TransactionStore>::Transaction,
    TransactionAttempt<SqliteStore>,
);

pub(super) struct Server {
    pub(super) engine: Engine<SqliteStore>,
    pub(super) policy: Arc<Policy>,
    _directory: TempDir,
}

impl Server {
    pub(super) async fn new(limit: Duration, change: impl FnOnce(&mut Policy)) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("data.db");
        let opened = SqliteStore::open(&path).await.unwrap();
        sqlx::query("CREATE TABLE effects (what TEXT)")
            .execute(opened.pool())
            .await
            .unwrap();
        let store = SqliteStore::builder(opened.pool().clone())
            .with_transaction_limit(limit)
            .build()
            .unwrap();
        let mut policy = Policy::default();
        change(&mut policy);
        Self {
            engine: Engine::new("tests", store),
            policy: Arc::new(policy),
            _directory: directory,
        }
    }

    pub(super) fn identity(&self) -> Identity {
        let scope = Scope::new("alice");
        let key = IdempotencyKey::new("k").unwrap();
        let arguments = CanonicalArguments::new(None, &[]);
        self.engine.identify(&scope, Some(&key), "tool", &arguments)
    }

    pub(super) fn request(&self) -> Request<'_> {
        let call = CallInfo::new("tool", Scope::new("alice"));
        Request::new(call, self.identity(), &self.policy)
    }

    pub(super) async fn begin(&self) -> Result<Begin, Outcome> {
        let begun = self.engine.begin_transaction(self.request()).await;
        begun.map_err(|answer| Outcome::from(answer, None))
    }

    /// One call whose handler writes a row and returns `reply`.
    pub(super) async fn call(&self, reply: Reply) -> Outcome {
        let (mut transaction, attempt) = match self.begin().await {
            Ok(begun) => begun,
            Err(answer) => return answer,
        };
        let reply = attempt
            .run(async {
                sqlx::query("INSERT INTO effects VALUES ('effect')")
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                reply
            })
            .await
            .unwrap();
        let answer = attempt.finish(Some(transaction), &reply).await;
        Outcome::from(answer, Some(reply))
    }

    async fn effects(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM effects")
            .fetch_one(self.engine.store().pool())
            .await
            .unwrap()
    }
}

pub(super) const LONG: Duration = Duration::from_secs(30);

fn reply(kind: ResultKind, text: &str) -> Reply {
    Reply::new(kind, text)
}

#[tokio::test]
async fn effect_and_record_commit_together_and_a_retry_is_answered() {
    let server = Server::new(LONG, |_| {}).await;
    let success = || reply(ResultKind::Success, "one");
    assert_eq!(server.call(success()).await, own("one"));
    assert_eq!(server.call(success()).await, replayed("one"));
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn an_error_is_recorded_or_not_as_the_policy_says_and_its_effect_only_where_asked_for() {
    for (on_error, second, effects) in [
        (OnError::Default, replayed("failed"), 0),
        (OnError::Record, replayed("failed"), 0),
        (OnError::Release, own("two"), 1),
        (OnError::Commit, replayed("failed"), 1),
    ] {
        let server = Server::new(LONG, |policy| policy.on_error = on_error).await;
        let failed = reply(ResultKind::ErrorResult, "failed");
        assert_eq!(server.call(failed).await, own("failed"), "{on_error:?}");
        let again = reply(ResultKind::Success, "two");
        assert_eq!(server.call(again).await, second, "{on_error:?}");
        assert_eq!(server.effects().await, effects, "{on_error:?}");
    }
}

/// A record without its result says that the effect is committed.
#[tokio::test]
async fn an_error_that_is_too_large_to_keep_is_recorded_only_with_its_effect() {
    let too_large = Outcome::Refused("idempotency_result_too_large", "committed", "ask_operator");
    for (on_error, second, effects) in [
        (OnError::Default, own("two"), 1),
        (OnError::Record, own("two"), 1),
        (OnError::Commit, too_large, 1),
    ] {
        let server = Server::new(LONG, |policy| {
            policy.on_error = on_error;
            policy.max_result_bytes = 3;
        })
        .await;
        let failed = reply(ResultKind::ErrorResult, "failed");
        assert_eq!(server.call(failed).await, own("failed"), "{on_error:?}");
        let again = reply(ResultKind::Success, "two");
        assert_eq!(server.call(again).await, second, "{on_error:?}");
        assert_eq!(server.effects().await, effects, "{on_error:?}");
    }
}

#[tokio::test]
async fn a_handler_that_holds_its_transaction_for_too_long_is_stopped_and_rolled_back() {
    let server = Server::new(Duration::from_millis(50), |_| {}).await;
    let (mut transaction, attempt) = server.begin().await.unwrap();
    let ended = attempt
        .run(async {
            sqlx::query("INSERT INTO effects VALUES ('effect')")
                .execute(&mut *transaction)
                .await
                .unwrap();
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(ended, Err(Interrupted::OverTime));
    let stopped = reply(ResultKind::Interrupted, "stopped");
    let answer = attempt.finish(Some(transaction), &stopped).await;
    assert_eq!(Outcome::from(answer, Some(stopped)), own("stopped"));
    assert_eq!(server.effects().await, 0);
    assert_eq!(
        server.call(reply(ResultKind::Success, "two")).await,
        own("two")
    );
}

#[tokio::test]
async fn a_transaction_that_something_still_holds_is_not_committed_and_leaves_no_record() {
    let server = Server::new(LONG, |_| {}).await;
    let (mut held, attempt) = server.begin().await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('effect')")
        .execute(&mut *held)
        .await
        .unwrap();
    let one = reply(ResultKind::Success, "one");
    let answer = attempt.finish(None, &one).await;
    assert_eq!(
        Outcome::from(answer, Some(one)),
        Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator")
    );
    drop(held);
    assert_eq!(server.effects().await, 0);
    assert_eq!(
        server.call(reply(ResultKind::Success, "two")).await,
        own("two")
    );
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn a_transaction_in_doubt_is_nobodys_to_find_out_about_whatever_is_said_of_leases() {
    for on_doubt in [OnDoubt::Fail, OnDoubt::Rerun, OnDoubt::Verify] {
        let server = Server::new(LONG, |policy| policy.on_doubt = on_doubt).await;
        let (mut transaction, attempt) = server.begin().await.unwrap();
        let ended = attempt.run(async {
            // It is refused, and noticed.
            drop(sqlx::raw_sql("COMMIT").execute(&mut *transaction).await);
            reply(ResultKind::Success, "one")
        });
        let one = ended.await.unwrap();
        let in_doubt = Outcome::Refused("idempotency_outcome_unknown", "unknown", "ask_operator");
        let answer = attempt.finish(Some(transaction), &one).await;
        let first = Outcome::from(answer, Some(one));
        assert_eq!(first, in_doubt);
        let retry = server.call(reply(ResultKind::Success, "two")).await;
        assert_eq!(retry, in_doubt, "{on_doubt:?}");
    }
}

#[tokio::test]
async fn a_lease_that_a_transaction_could_outlive_is_refused() {
    let server = Server::new(LONG, |policy| policy.lease = LONG * 3).await;
    let Begun::Answer(answer) = server.engine.begin_lease(server.request()).await else {
        panic!("the lease is too short");
    };
    assert_eq!(
        Outcome::from(answer, None),
        Outcome::Refused("idempotency_misconfigured", "not_committed", "ask_operator")
    );
}

#[tokio::test]
async fn an_engine_with_another_secret_than_the_first_or_with_none_refuses_every_call() {
    let server = Server::new(LONG, |_| {}).await;
    let engine = |secret: Option<&str>| {
        let store = SqliteStore::clone(server.engine.store());
        let builder = Engine::builder("with a secret", store);
        match secret {
            Some(secret) => builder.with_secret(Secret::new(secret).unwrap()).build(),
            None => builder.build(),
        }
    };
    let begin = async |engine: &Engine<SqliteStore>, key: &str| {
        let scope = Scope::new("alice");
        let key = IdempotencyKey::new(key).unwrap();
        let arguments = CanonicalArguments::new(None, &[]);
        let identity = engine.identify(&scope, Some(&key), "tool", &arguments);
        let request = Request::new(CallInfo::new("tool", scope), identity, &server.policy);
        let begun = engine.begin_transaction(request).await;
        begun.err().map(|answer| Outcome::from(answer, None))
    };
    let refused = Some(Outcome::Refused(
        "idempotency_misconfigured",
        "not_committed",
        "ask_operator",
    ));
    let first = engine(Some("the first secret of all"));
    assert_eq!(begin(&first, "a").await, None);
    assert_eq!(
        begin(&engine(Some("quite another secret")), "b").await,
        refused
    );
    assert_eq!(begin(&engine(None), "c").await, refused);
    assert_eq!(
        begin(&engine(Some("the first secret of all")), "d").await,
        None
    );
    // Other applications have secrets of their own, or none.
    assert_eq!(
        server.call(reply(ResultKind::Success, "one")).await,
        own("one")
    );
}

/// Long enough for a call on a busy machine.
const SHORT: Duration = Duration::from_millis(500);

/// A call whose handler writes a row, and then goes on for ever, whatever it is told.
async fn hang((mut transaction, attempt): Begin) -> (bool, Outcome) {
    let (stop, mut told) = (attempt.stop(), false);
    let ran = attempt
        .run(async {
            sqlx::query("INSERT INTO effects VALUES ('effect')")
                .execute(&mut *transaction)
                .await
                .unwrap();
            stop.told().await;
            told = true;
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(ran, Err(Interrupted::OverTime));
    let reply = reply(ResultKind::Interrupted, "over time");
    let answer = attempt.finish(Some(transaction), &reply).await;
    (told, Outcome::from(answer, Some(reply)))
}

#[tokio::test]
async fn a_handler_is_told_to_stop_at_its_timeout_and_then_dropped() {
    // The policy's timeout, and a tenth before the end of the store's limit.
    for (limit, timeout) in [(LONG, Some(SHORT)), (SHORT, None), (SHORT, Some(LONG))] {
        let server = Server::new(limit, |policy| policy.transaction_timeout = timeout).await;
        let begun = server.begin().await.unwrap();
        let waiting = server.call(reply(ResultKind::Success, "two"));
        let (hung, waited) = tokio::join!(hang(begun), waiting);
        assert_eq!(hung, (true, own("over time")));
        // The call that waited runs.
        assert_eq!(waited, own("two"));
        assert_eq!(server.effects().await, 1);
    }
}

#[tokio::test]
async fn a_handler_that_stops_when_it_is_told_answers_for_itself() {
    let server = Server::new(LONG, |policy| policy.transaction_timeout = Some(SHORT)).await;
    let (transaction, attempt) = server.begin().await.unwrap();
    let stop = attempt.stop();
    let ran = attempt.run(stop.told()).await;
    assert_eq!(ran, Ok(()));
    let reply = reply(ResultKind::Success, "in time");
    let answer = attempt.finish(Some(transaction), &reply).await;
    assert_eq!(Outcome::from(answer, Some(reply)), own("in time"));
}

#[tokio::test]
async fn a_handler_under_a_lease_is_told_to_stop_before_the_stores_limit_and_then_dropped() {
    let server = Server::new(SHORT, |policy| policy.on_error = OnError::InDoubt).await;
    let Begun::Attempt(mut attempt) = server.engine.begin_lease(server.request()).await else {
        panic!("the key is new");
    };
    let (handle, mut told) = (attempt.handle(), false);
    let ran = attempt
        .run(async {
            let mut transaction = handle.begin::<SqliteStore>().await.unwrap();
            sqlx::query("INSERT INTO effects VALUES ('effect')")
                .execute(&mut *transaction)
                .await
                .unwrap();
            handle.told_to_stop().await;
            told = true;
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(ran, Err(Interrupted::OverTime));
    assert!(told);
    attempt
        .finish(&reply(ResultKind::Interrupted, "over time"))
        .await;
    assert_eq!(server.effects().await, 0);
}
