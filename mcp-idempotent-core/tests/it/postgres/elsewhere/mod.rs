//! Attempts that complete themselves in a transaction of another driver. It is one of sqlx here, on
//! connections that the store does not have.

mod held;

use std::sync::Arc;

use mcp_idempotent_core::{
    BeginError, Bytes, CompletionError, CompletionStatement, LeaseHandle, OnDoubt, OnError, Policy,
    ResultKind, RotatedKeys,
    store::{Store as _, postgres::PostgresStore},
};
use sqlx::{PgConnection, Postgres, Row as _, Transaction};
use tokio::sync::oneshot;

use super::database::{Database, unique};
use crate::engine::{Log, Outcome, Reply, Server, in_doubt, leases::IN_DOUBT, own, succeed, until};

const ASK_AGAIN: Outcome =
    Outcome::Refused("idempotency_outcome_unknown", "unknown", "retry_same_key");
/// How an operator hears of a call in doubt.
const REPORT: &str = "a call is in doubt: its handler ended";
const TOO_LARGE: Outcome =
    Outcome::Refused("idempotency_result_too_large", "committed", "ask_operator");
const ROTATED: Outcome =
    Outcome::Refused("idempotency_key_rotated", "not_committed", "use_new_key");

fn replayed(text: &str) -> Outcome {
    Outcome::Replayed(text.to_owned())
}

/// A database, and a server whose handlers act nowhere else.
async fn server(change: impl FnOnce(&mut Policy)) -> (Arc<Database>, Server<PostgresStore>) {
    let name = unique("elsewhere");
    let database = Database::with_options(|options| options.application_name(&name)).await;
    let server = Server::on(database.store.clone(), |policy| {
        policy.on_error = OnError::Release;
        policy.on_doubt = OnDoubt::Rerun;
        change(policy);
    });
    (Arc::new(database), server)
}

/// Another process, which runs a call in doubt again.
fn another(database: &Database) -> Server<PostgresStore> {
    Server::on(database.store.clone(), |policy| {
        policy.on_error = OnError::Release;
        policy.on_doubt = OnDoubt::Rerun;
    })
}

fn completion(handle: &LeaseHandle, text: &str) -> CompletionStatement {
    handle.completion(&Bytes::from(text.to_owned())).unwrap()
}

async fn run(
    connection: &mut PgConnection,
    completion: &CompletionStatement,
) -> Result<i32, sqlx::Error> {
    let statement = sqlx::query(sqlx::AssertSqlSafe(completion.sql().to_owned()))
        .bind(completion.attempt())
        .bind(completion.result());
    statement.fetch_one(connection).await?.try_get(0)
}

/// A transaction with one effect and the completion, which is not committed yet.
async fn writes(
    database: &Database,
    handle: &LeaseHandle,
    text: &str,
) -> Transaction<'static, Postgres> {
    let mut transaction = database.outside.begin().await.unwrap();
    database.write(&mut transaction, text).await;
    let changed = run(&mut transaction, &completion(handle, text)).await;
    assert_eq!(changed.unwrap(), 1);
    transaction
}

async fn commits(database: &Database, handle: &LeaseHandle, text: &str) {
    writes(database, handle, text).await.commit().await.unwrap();
}

async fn never(_: LeaseHandle) -> Reply {
    panic!("this handler must not run")
}

#[tokio::test]
async fn the_effect_and_the_result_commit_together_and_are_replayed_everywhere() {
    let (database, server) = server(|_| {}).await;
    let first = async |handle: LeaseHandle| {
        commits(&database, &handle, "once").await;
        succeed("once").await
    };
    assert_eq!(server.call_handled("key", first).await, own("once"));
    assert_eq!(server.call_handled("key", never).await, replayed("once"));
    let elsewhere = Server::on(database.another_process(|store| store), |_| {});
    assert_eq!(elsewhere.call_handled("key", never).await, replayed("once"));
    assert_eq!(database.effects().await, ["once"]);
}

#[tokio::test]
async fn a_transaction_that_is_rolled_back_leaves_the_error_to_the_policy() {
    for (on_error, first, again) in [
        (OnError::Release, own("failed"), own("once")),
        (OnError::InDoubt, in_doubt("failed"), IN_DOUBT),
    ] {
        let (database, server) = server(|policy| {
            policy.on_error = on_error;
            policy.on_doubt = OnDoubt::Fail;
        })
        .await;
        let log = Log::default();
        let _guard = log.capture();
        let fails = async |handle: LeaseHandle| {
            drop(writes(&database, &handle, "never").await);
            Reply::new(ResultKind::ProtocolError, "failed")
        };
        assert_eq!(server.call_handled("key", fails).await, first);
        let is_reported = log.text().contains(REPORT);
        assert_eq!(is_reported, on_error == OnError::InDoubt);
        let second = async |handle: LeaseHandle| {
            commits(&database, &handle, "once").await;
            succeed("once").await
        };
        let is_free = again == own("once");
        assert_eq!(server.call_handled("key", second).await, again);
        assert_eq!(database.effects().await.len(), usize::from(is_free));
    }
}

#[tokio::test]
async fn a_fenced_attempt_can_commit_nothing_even_if_it_does_not_look() {
    let (database, server) = server(|_| {}).await;
    // A panic of the handler would look like its failure.
    let mut has_ended = false;
    let late = async |handle: LeaseHandle| {
        let mut transaction = database.outside.begin().await.unwrap();
        database.write(&mut transaction, "late").await;
        database
            .execute("UPDATE {s}.records SET lease_until = clock_timestamp() WHERE state = 0")
            .await;
        let takes_over = tokio::spawn({
            let database = Arc::clone(&database);
            async move {
                let handler = async |handle: LeaseHandle| {
                    commits(&database, &handle, "once").await;
                    succeed("once").await
                };
                another(&database).call_handled("key", handler).await
            }
        });
        assert_eq!(takes_over.await.unwrap(), own("once"));
        let error = run(&mut transaction, &completion(&handle, "late"))
            .await
            .unwrap_err();
        let error = error.into_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("22P02"));
        assert!(error.message().contains("has lost its lease"), "{error}");
        // It pays no attention, and reports success.
        transaction.commit().await.unwrap();
        has_ended = true;
        succeed("late").await
    };
    assert_eq!(server.call_handled("key", late).await, ASK_AGAIN);
    assert!(has_ended);
    assert_eq!(server.call_handled("key", never).await, replayed("once"));
    assert_eq!(database.effects().await, ["once"]);
}

#[tokio::test]
async fn whatever_a_handler_returns_after_its_commit_the_committed_result_is_the_answer() {
    let (database, server) = server(|_| {}).await;
    for kind in [
        ResultKind::Success,
        ResultKind::Task,
        ResultKind::ErrorResult,
        ResultKind::ProtocolError,
        ResultKind::NotExecuted,
        ResultKind::NotCalled,
        ResultKind::InputRequired,
        ResultKind::Interrupted,
    ] {
        let key = format!("{kind:?}");
        let handler = async |handle: LeaseHandle| {
            commits(&database, &handle, &key).await;
            Reply::new(kind, "another")
        };
        assert_eq!(server.call_handled(&key, handler).await, replayed(&key));
        assert_eq!(server.call_handled(&key, never).await, replayed(&key));
    }
    assert_eq!(database.effects().await.len(), 8);
}

/// It may have committed its effect, and forgotten the statement.
#[tokio::test]
async fn a_success_that_was_not_committed_leaves_the_call_in_doubt() {
    let (database, server) = server(|policy| policy.on_doubt = OnDoubt::Fail).await;
    let forgets = async |handle: LeaseHandle| {
        let mut transaction = database.outside.begin().await.unwrap();
        database.write(&mut transaction, "without a record").await;
        let _forgotten = completion(&handle, "done");
        transaction.commit().await.unwrap();
        succeed("done").await
    };
    let log = Log::default();
    let guard = log.capture();
    assert_eq!(server.call_handled("forgets", forgets).await, IN_DOUBT);
    assert!(log.text().contains(REPORT), "{}", log.text());
    drop(guard);
    let rolls_back = async |handle: LeaseHandle| {
        writes(&database, &handle, "never")
            .await
            .rollback()
            .await
            .unwrap();
        succeed("done").await
    };
    assert_eq!(
        server.call_handled("rolls-back", rolls_back).await,
        IN_DOUBT
    );
    for key in ["forgets", "rolls-back"] {
        assert_eq!(server.call_handled(key, never).await, IN_DOUBT);
    }
    assert_eq!(database.effects().await, ["without a record"]);
}

/// As after a connection that broke at the commit: the driver says that it failed.
#[tokio::test]
async fn a_handler_may_try_its_transaction_again_and_one_commits() {
    let (database, server) = server(|_| {}).await;
    let handler = async |handle: LeaseHandle| {
        writes(&database, &handle, "first")
            .await
            .rollback()
            .await
            .unwrap();
        commits(&database, &handle, "second").await;
        let mut third = database.outside.begin().await.unwrap();
        run(&mut third, &completion(&handle, "third"))
            .await
            .unwrap_err();
        succeed("second").await
    };
    assert_eq!(server.call_handled("key", handler).await, own("second"));
    assert_eq!(database.effects().await, ["second"]);
}

#[tokio::test]
async fn calls_that_joined_get_the_committed_result() {
    let (database, server) = server(|_| {}).await;
    let (enter, entered) = oneshot::channel();
    let handler = async |handle: LeaseHandle| {
        enter.send(()).unwrap();
        until(|| server.engine.waiting() == 1).await;
        commits(&database, &handle, "once").await;
        Reply::new(ResultKind::ProtocolError, "failed")
    };
    let first = server.call_handled("key", handler);
    let second = async {
        entered.await.unwrap();
        server.call_handled("key", never).await
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first, replayed("once"));
    assert_eq!(second, Outcome::Joined("once".to_owned()));
}

#[tokio::test]
async fn a_result_that_is_too_large_leaves_a_tombstone() {
    let (database, server) = server(|policy| policy.max_result_bytes = 3).await;
    let handler = async |handle: LeaseHandle| {
        assert_eq!(completion(&handle, "done").result(), None);
        assert_eq!(completion(&handle, "one").result(), Some(b"one".as_slice()));
        commits(&database, &handle, "done").await;
        succeed("done").await
    };
    assert_eq!(server.call_handled("key", handler).await, own("done"));
    assert_eq!(server.call_handled("key", never).await, TOO_LARGE);
}

#[tokio::test]
async fn the_record_that_equal_calls_share_is_completed_in_the_same_statement() {
    let (database, server) = server(|policy| policy.rotated_keys = RotatedKeys::Refuse).await;
    let handler = async |handle: LeaseHandle| {
        commits(&database, &handle, "once").await;
        succeed("once").await
    };
    assert_eq!(server.call_handled("a", handler).await, own("once"));
    assert_eq!(server.call_handled("a", never).await, replayed("once"));
    assert_eq!(server.call_handled("b", never).await, ROTATED);
    let completed = "SELECT count(*) = 2 AND min(expires_at) < clock_timestamp() + interval '11 min' \
                     AND max(expires_at) > clock_timestamp() + interval '23 h' FROM {s}.records WHERE state = 1 AND (labels LIKE 'tool%' OR labels LIKE '%rotated-keys%')";
    database.until(completed).await;
    database.execute("TRUNCATE {s}.records").await;
    let mut has_ended = false;
    let loses_its_guard = async |handle: LeaseHandle| {
        let mut transaction = database.outside.begin().await.unwrap();
        database.write(&mut transaction, "late").await;
        let statement = completion(&handle, "late");
        let guard = statement
            .attempt()
            .split_once(',')
            .unwrap()
            .1
            .split(':')
            .next()
            .unwrap();
        database
            .execute(&format!(
                "UPDATE {{s}}.records SET lease_until = clock_timestamp() WHERE id = decode('{guard}', 'hex')"
            ))
            .await;
        run(&mut transaction, &statement).await.unwrap_err();
        drop(transaction);
        has_ended = true;
        Reply::new(ResultKind::ProtocolError, "failed")
    };
    assert_ne!(
        server.call_handled("c", loses_its_guard).await,
        replayed("late")
    );
    assert!(has_ended);
    assert_eq!(database.effects().await, ["once"]);
}

#[tokio::test]
async fn a_completion_makes_its_transaction_durable_unless_the_store_leaves_that_to_the_session() {
    for (asynchronous, durable) in [(false, "on"), (true, "off")] {
        let database =
            Database::with_store(|store| store.with_asynchronous_completions(asynchronous)).await;
        let server = Server::on(database.store.clone(), |_| {});
        let handler = async |handle: LeaseHandle| {
            database
                .witness("current_setting('synchronous_commit')")
                .await;
            let mut transaction = database.outside.begin().await.unwrap();
            let off = sqlx::query("SET LOCAL synchronous_commit = off");
            off.execute(&mut *transaction).await.unwrap();
            run(&mut transaction, &completion(&handle, "done"))
                .await
                .unwrap();
            transaction.commit().await.unwrap();
            succeed("done").await
        };
        assert_eq!(server.call_handled("key", handler).await, own("done"));
        assert_eq!(database.witnessed().await, [durable]);
    }
}

#[tokio::test]
async fn an_attempt_is_completed_in_one_way_and_by_a_store_that_can() {
    let (database, server) = server(|_| {}).await;
    let asks_first = async |handle: LeaseHandle| {
        let _statement = completion(&handle, "done");
        let begun = handle.begin::<PostgresStore>().await;
        assert!(matches!(begun, Err(BeginError::CompletedElsewhere)));
        Reply::new(ResultKind::NotExecuted, "asked")
    };
    assert_eq!(server.call_handled("a", asks_first).await, own("asked"));
    let begins_first = async |handle: LeaseHandle| {
        let begun = handle.begin::<PostgresStore>().await.unwrap();
        let asked = handle.completion(&Bytes::from("done"));
        assert!(
            matches!(asked, Err(CompletionError::TransactionBegun)),
            "{asked:?}"
        );
        drop(begun);
        succeed("begun").await
    };
    assert_eq!(server.call_handled("b", begins_first).await, own("begun"));
    let in_memory = Server::on(mcp_idempotent_core::MemoryStore::new(), |_| {});
    let mut kept = None;
    let asks = async |handle: LeaseHandle| {
        let asked = handle.completion(&Bytes::from("done"));
        assert!(
            matches!(asked, Err(CompletionError::NotSupported)),
            "{asked:?}"
        );
        succeed("done").await
    };
    assert_eq!(in_memory.call_handled("c", asks).await, own("done"));
    let keeps = async |handle: LeaseHandle| {
        kept = Some(handle);
        succeed("done").await
    };
    assert_eq!(server.call_handled("d", keeps).await, own("done"));
    let asked = kept.unwrap().completion(&Bytes::from("late"));
    assert!(matches!(asked, Err(CompletionError::Ended)), "{asked:?}");
    let nothing = database
        .store
        .foreign_transactions()
        .unwrap()
        .no_completion();
    let mut transaction = database.outside.begin().await.unwrap();
    assert_eq!(run(&mut transaction, &nothing).await.unwrap(), 1);
}
