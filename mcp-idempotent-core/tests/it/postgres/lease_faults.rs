//! Leases whose sessions end, whose answers are lost, and which several stores want at once.

use std::time::Duration;

use mcp_idempotent_core::{
    OperatorStore, RecordState, Store, TransactionStore,
    store::{Claimed, End, Ended, LeaseEnd, StoreErrorKind},
};
use sqlx::{Connection, Executor};

use super::{
    database::{Database, begin, claim, lease, result},
    faults::{kept, one_effect_per_key_while_sessions_are_terminated},
    proxy::{Cut, proxied},
};

const ATTEMPTS: u32 = 5000;

#[tokio::test]
async fn a_lost_answer_to_a_renewal_is_asked_for_again() {
    for cut in [Cut::AfterTheServer, Cut::BeforeTheServer] {
        let (proxy, database) = proxied(1, |store| store).await;
        let lease = lease(&database.store, &claim("key", "{}")).await;
        proxy.cut_next_commit(cut);
        let hour = Duration::from_secs(3600);
        let renewed = database.store.renew(&lease, hour).await;
        assert!(proxy.has_cut());
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        database
            .until("SELECT lease_until > clock_timestamp() + interval '50 min' FROM {s}.records")
            .await;
    }
}

#[tokio::test]
async fn a_lost_answer_to_a_release_that_keeps_the_origin_is_asked_for_again() {
    for cut in [Cut::AfterTheServer, Cut::BeforeTheServer] {
        let (proxy, database) = proxied(1, |store| store).await;
        let first = lease(&database.store, &claim("key", "{}")).await;
        proxy.cut_next_commit(cut);
        let end = database
            .store
            .release(&first, Duration::from_secs(60))
            .await;
        assert!(proxy.has_cut());
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
        let second = lease(&database.store, &claim("key", "{}")).await;
        assert_eq!((second.origin, second.attempts), (first.origin, 2));
    }
}

#[tokio::test]
async fn a_takeover_whose_answer_was_lost_is_found_again_and_runs_once() {
    for cut in [Cut::AfterTheServer, Cut::BeforeTheServer] {
        let (proxy, database) = proxied(1, |store| store).await;
        let claim = claim("key", "{}");
        let first = lease(&database.store, &claim).await;
        database.store.abandon(&first).await.unwrap();
        proxy.cut_next_commit(cut);
        let second = database.store.take_over(&claim, first.token).await;
        assert!(proxy.has_cut());
        let second = second.unwrap().expect("it is ours");
        assert_eq!((second.origin, second.attempts), (first.origin, 2));
        let again = database.store.take_over(&claim, first.token).await;
        assert!(matches!(again, Ok(None)), "{again:?}");
        let renewed = database.store.renew(&second, claim.lease).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    }
}

#[tokio::test]
async fn a_claim_that_was_given_up_while_the_server_was_paused_holds_no_connection() {
    let (proxy, database) = proxied(1, |store| store).await;
    let paused = claim("paused", "{}");
    // Connected and prepared.
    lease(&database.store, &claim("warm", "{}")).await;
    proxy.cut_next_commit(Cut::Hold);
    tokio::select! {
        answer = database.store.claim(&paused) => panic!("the server is paused: {answer:?}"),
        () = proxy.until_cut() => {}
    }
    proxy.let_go();
    lease(&database.store, &claim("next", "{}")).await;
    // Whether the server came to it or not: it is claimed, or free.
    let claimed = database.store.claim(&paused).await.unwrap();
    assert!(
        matches!(&claimed, Claimed::New(_) | Claimed::InProgress)
            || matches!(&claimed, Claimed::Found(record)
                if matches!(record.state, RecordState::InProgress { .. })),
        "{claimed:?}"
    );
}

#[tokio::test]
async fn a_takeover_does_not_pass_a_running_transaction() {
    let database = Database::new().await;
    let claim = claim("key", "{}");
    let first = lease(&database.store, &claim).await;
    database.store.abandon(&first).await.unwrap();
    // As if the record had come past the lock.
    database
        .execute("UPDATE {s}.records SET id = '\\x00' || id")
        .await;
    let running = begin(&database.store, &claim).await;
    database
        .execute("UPDATE {s}.records SET id = substr(id, 2)")
        .await;
    let taken = database.store.take_over(&claim, first.token).await;
    assert!(matches!(taken, Ok(None)), "{taken:?}");
    let end = End::RollBack;
    let ended = database.store.end(running, Some(&claim), end).await;
    assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    let taken = database.store.take_over(&claim, first.token).await;
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
}

#[tokio::test]
async fn while_our_table_is_locked_everything_is_answered_as_busy() {
    let database =
        Database::with_store(|store| store.with_lock_timeout(Duration::from_millis(20))).await;
    let store = &database.store;
    let (held, free) = (claim("held", "{}"), claim("free", "{}"));
    let lease = lease(store, &held).await;
    let mut locker = database.outside.acquire().await.unwrap();
    let mut locker = locker.begin().await.unwrap();
    locker
        .execute(sqlx::raw_sql(
            database.sql("LOCK TABLE {s}.records IN ACCESS EXCLUSIVE MODE"),
        ))
        .await
        .unwrap();
    let minute = Duration::from_secs(60);
    for answer in [
        store.claim(&free).await.map(drop),
        store.take_over(&held, lease.token).await.map(drop),
        store.renew(&lease, minute).await.map(drop),
        store.complete(&lease, result("done")).await.map(drop),
        store.release(&lease, Duration::ZERO).await.map(drop),
        store.release(&lease, minute).await.map(drop),
        store.abandon(&lease).await.map(drop),
        store.show(lease.id).await.map(drop),
        store.list(&Default::default()).await.map(drop),
    ] {
        let error = answer.expect_err("the table is locked");
        assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
        assert!(error.is_transient());
    }
    locker.rollback().await.unwrap();
    let end = store.complete(&lease, result("done")).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
}

/// Calls under `key` until a record says that it is done; a call in doubt is run again.
async fn until_completed(database: &Database, key: &str) {
    let mut claim = claim(key, "{}");
    claim.lease = Duration::from_millis(200);
    for _ in 0..ATTEMPTS {
        let lease = match database.store.claim(&claim).await {
            Ok(Claimed::New(lease)) => lease,
            Ok(Claimed::Found(record)) => match record.state {
                RecordState::Completed { .. } => return,
                RecordState::InDoubt { token, .. } => {
                    match database.store.take_over(&claim, token).await {
                        Ok(Some(lease)) => lease,
                        Ok(None) => continue,
                        Err(error) => {
                            assert!(error.is_transient(), "{error:?}");
                            continue;
                        }
                    }
                }
                _ => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                }
            },
            Ok(Claimed::InProgress) => continue,
            Ok(Claimed::Conflict) => panic!("equal calls do not conflict"),
            Err(error) => {
                assert!(error.is_transient(), "{error:?}");
                continue;
            }
        };
        match database.store.renew(&lease, claim.lease).await {
            Ok(_) => {}
            Err(error) => assert!(error.is_transient(), "{error:?}"),
        }
        let Ok(Claimed::New(mut transaction)) = database.store.begin(&claim.call, None).await
        else {
            continue;
        };
        let written = sqlx::query(database.sql("INSERT INTO {s}.effects VALUES ($1)"))
            .bind(key)
            .execute(&mut *transaction)
            .await;
        if written.is_err() {
            continue;
        }
        let end = End::Complete(lease, kept(key));
        match database.store.end(transaction, None, end).await {
            Ended::AsAsked(_) => return,
            Ended::Aborted(_) | Ended::Unknown(_) | Ended::Fenced => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
    panic!("{key} was never completed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn terminated_sessions_leave_one_effect_for_each_lease() {
    one_effect_per_key_while_sessions_are_terminated(|database, key| async move {
        until_completed(&database, &key).await;
    })
    .await;
}

/// As handlers do that use the pool for more than their transaction.
#[tokio::test]
async fn a_lease_is_renewed_while_handlers_hold_every_connection_of_the_pool() {
    let database = Database::with_pool(2).await;
    let lease = lease(&database.store, &claim("key", "{}")).await;
    let _held = (
        database.pool.acquire().await.unwrap(),
        database.pool.acquire().await.unwrap(),
    );
    for _ in 0..3 {
        let renewed = database.store.renew(&lease, Duration::from_secs(60)).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    }
}

#[tokio::test]
async fn a_lease_is_renewed_where_only_a_hook_of_the_pool_gives_the_rights() {
    let role = super::database::unique("renewer");
    let database = Database::with(
        |options| options,
        |pool| {
            let set = format!("SET ROLE {role}");
            pool.after_connect(move |connection, _| {
                let set = set.clone();
                Box::pin(async move {
                    connection.execute(sqlx::AssertSqlSafe(set)).await?;
                    Ok(())
                })
            })
        },
        |store| store,
    )
    .await;
    database
        .execute(&format!(
            "CREATE ROLE {role}; GRANT USAGE ON SCHEMA {{s}} TO {role}; \
             GRANT ALL ON {{s}}.records TO {role}; GRANT USAGE ON SEQUENCE {{s}}.tokens TO {role}; \
             ALTER TABLE {{s}}.records ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; \
             CREATE POLICY only_with_the_role ON {{s}}.records USING (current_user = '{role}'); \
             CREATE ROLE {role}_plain LOGIN; GRANT {role} TO {role}_plain"
        ))
        .await;
    database
        .pool
        .set_connect_options(super::database::options().username(&format!("{role}_plain")));
    let lease = lease(&database.store, &claim("key", "{}")).await;
    let renewed = database.store.renew(&lease, Duration::from_secs(60)).await;
    database
        .execute(&format!(
            "DROP OWNED BY {role}, {role}_plain; DROP ROLE {role}_plain, {role}"
        ))
        .await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
}

#[tokio::test]
async fn the_connection_beside_the_pool_ends_with_the_pool() {
    let name = super::database::unique("beside");
    let database = Database::with_options(|options| options.application_name(&name)).await;
    let lease = lease(&database.store, &claim("key", "{}")).await;
    let renewed = database.store.renew(&lease, Duration::from_secs(60)).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    let open = format!("(SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}')");
    database.until(&format!("SELECT {open} = 2")).await;
    database.pool.close().await;
    database.until(&format!("SELECT {open} = 0")).await;
    let renewed = database.store.renew(&lease, Duration::from_secs(60)).await;
    assert!(renewed.is_err(), "{renewed:?}");
}

/// A change of the tables while servers run, as a later migration makes it.
#[tokio::test]
async fn a_statement_that_was_prepared_for_another_form_of_the_table_is_prepared_anew() {
    let database = Database::with_pool(2).await;
    for column in ["attempts", "origin", "token"] {
        let key = |which: &str| claim(&format!("{column}-{which}"), "{}");
        let first = lease(&database.store, &key("before")).await;
        drop(begin(&database.store, &key("begun")).await);
        database
            .execute(&format!(
                "CREATE DOMAIN {{s}}.of_{column} AS {}; \
                 ALTER TABLE {{s}}.records ALTER COLUMN {column} TYPE {{s}}.of_{column}",
                if column == "attempts" {
                    "integer"
                } else {
                    "bigint"
                }
            ))
            .await;
        lease(&database.store, &key("after")).await;
        let found = database.store.claim(&key("before")).await;
        assert!(matches!(found, Ok(Claimed::Found(_))), "{found:?}");
        let end = database.store.complete(&first, result("done")).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
        let ended = database.call(&key("begun"), column).await;
        assert!(matches!(ended, Ended::AsAsked(_)), "{ended:?}");
    }
}
