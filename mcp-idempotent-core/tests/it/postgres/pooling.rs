//! A real pgbouncer. It knows no prepared statements, so in transaction mode a name on the server may be
//! anybody's.

use std::{sync::Mutex, time::Duration};

use futures_util::future::join_all;
use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{Claim, Claimed, End, Ended, LeaseEnd, postgres::PostgresStore},
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, postgres::PgPoolOptions};

use super::{
    database::{Database, claim, lease, options, result, text_of},
    kit::pooler::{PoolMode, Pooler},
};

/// Below and above [`PostgresStore::INLINE_RESULT_BYTES`].
const SIZES: [usize; 3] = [10, 5_000, 60_000];
const KEYS: usize = 12;
/// Fewer than there are clients, so that these share them.
const SESSIONS: u32 = 5;
/// How often a running call is asked for before a test gives up, and the rest between two.
const LOOKS: u32 = 2000;
const REST: Duration = Duration::from_millis(5);

/// One schema, and two processes with stores on it.
struct Site {
    database: Database,
    processes: [PostgresStore; 2],
}

async fn site(pooler: &Pooler, lookup_first: bool) -> Site {
    let database = Database::new().await;
    let process = || {
        let pool = PgPoolOptions::new()
            .max_connections(6)
            .connect_lazy_with(pooler.options(options()));
        PostgresStore::builder(pool)
            .with_schema(&database.schema)
            .with_lookup_first(lookup_first)
            .with_acquire_timeout(Duration::from_secs(60))
            .build()
            .unwrap()
    };
    prepare_everywhere(pooler, &process()).await;
    Site {
        processes: [process(), process()],
        database,
    }
}

/// Has an earlier process prepare its statements in every session of the pooler's. Later ones then find
/// their names known, as if they had prepared them.
async fn prepare_everywhere(pooler: &Pooler, earlier: &PostgresStore) {
    let mut busy = Vec::new();
    for session in 0..SESSIONS {
        let claim = claim(&format!("session-{session}"), "{}");
        let lease = lease(earlier, &claim).await;
        earlier.release(&lease, Duration::ZERO).await.unwrap();
        // The next turn is another session's.
        let mut connection = pooler.options(options()).connect().await.unwrap();
        sqlx::raw_sql("BEGIN")
            .execute(&mut connection)
            .await
            .unwrap();
        busy.push(connection);
    }
    for mut connection in busy {
        // A pooler ends a session that it gets back in a transaction.
        sqlx::raw_sql("ROLLBACK")
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
    }
}

/// The result of a call, which says whose it is.
fn own_result(site: &Site, key: &str, size: usize) -> String {
    let mut text = format!("{} {key} ", site.database.schema);
    text.extend(std::iter::repeat_n('x', size));
    text
}

/// One call in transaction mode: runs it, or gets the result of the call that did.
async fn call(site: &Site, process: &PostgresStore, claim: &Claim, text: &str) -> String {
    for _ in 0..LOOKS {
        let mut transaction = match process.begin(&claim.call, Some(claim)).await.unwrap() {
            Claimed::New(transaction) => transaction,
            Claimed::Found(record) => return text_of(&record),
            Claimed::InProgress => {
                tokio::time::sleep(REST).await;
                continue;
            }
            other => panic!("{other:?}"),
        };
        let key = claim.key_prefix.as_deref().unwrap();
        let insert = format!("INSERT INTO {{s}}.effects VALUES ('{key}')");
        let insert: AssertSqlSafe<String> = site.database.sql(&insert);
        let wrote = sqlx::raw_sql(insert).execute(&mut *transaction).await;
        wrote.unwrap();
        let end = End::Commit(result(text));
        match process.end(transaction, Some(claim), end).await {
            Ended::AsAsked(_) => return text.to_owned(),
            Ended::Lost(record) => return text_of(&record),
            Ended::LostInProgress => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the call was never answered")
}

async fn calls(site: &Site) {
    let keys: Vec<_> = (0..KEYS)
        .map(|key| (format!("k{key}"), SIZES[key % SIZES.len()]))
        .collect();
    // Expired records, for which a call makes room.
    for (key, _) in &keys {
        let claim = claim(key, "{}");
        site.database.call(&claim, key).await;
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        site.database.age(claim.id, year).await;
    }
    let calls = keys.iter().flat_map(|(key, size)| {
        let text = own_result(site, key, *size);
        site.processes.iter().map(move |process| {
            let text = text.clone();
            async move {
                let claim = claim(key, "{}");
                for _ in 0..3 {
                    assert_eq!(call(site, process, &claim, &text).await, text);
                    let record = process.look_up(&claim).await.unwrap().unwrap();
                    assert_eq!(text_of(&record), text);
                }
            }
        })
    });
    join_all(calls).await;
    let mut effects: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
    effects.extend(effects.clone());
    effects.sort();
    assert_eq!(site.database.effects().await, effects);
}

async fn leases(site: &Site) {
    let calls = (0..KEYS).map(|key| async move {
        let [first, second] = &site.processes;
        let key = format!("l{key}");
        let claim = claim(&key, "{}");
        let claimed = first.claim(&claim).await.unwrap();
        let Claimed::New(lease) = claimed else {
            panic!("expected a lease, found {claimed:?}");
        };
        let renewed = second.renew(&lease, Duration::from_secs(60)).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        let text = own_result(site, &key, 5_000);
        let completed = second.complete(&lease, result(&text)).await;
        assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
        let record = first.look_up(&claim).await.unwrap().unwrap();
        assert_eq!(text_of(&record), text);
    });
    join_all(calls).await;
}

async fn two_schemas_and_four_processes(mode: PoolMode, sessions: u32, lookup_first: bool) {
    let pooler = Pooler::start(&options(), mode, sessions);
    let sites = [
        site(&pooler, lookup_first).await,
        site(&pooler, lookup_first).await,
    ];
    let of = |site| async move {
        calls(site).await;
        leases(site).await;
    };
    tokio::join!(of(&sites[0]), of(&sites[1]));
}

#[tokio::test]
async fn processes_that_share_sessions_get_their_own_results() {
    two_schemas_and_four_processes(PoolMode::Transaction, SESSIONS, false).await;
}

#[tokio::test]
async fn processes_that_share_sessions_and_look_up_first_get_their_own_results() {
    two_schemas_and_four_processes(PoolMode::Transaction, SESSIONS, true).await;
}

/// As many sessions as clients, because each client keeps one.
#[tokio::test]
async fn processes_behind_a_pooler_in_session_mode_get_their_own_results() {
    two_schemas_and_four_processes(PoolMode::Session, 40, true).await;
}

/// The check holds one session and asks on another connection, which is then given a different one.
#[tokio::test]
async fn the_check_at_the_start_sees_a_pooler_that_shares_sessions() {
    let database = Database::new().await;
    for (mode, is_warned) in [(PoolMode::Transaction, true), (PoolMode::Session, false)] {
        let pooler = Pooler::start(&options(), mode, SESSIONS);
        let pool = PgPoolOptions::new().connect_lazy_with(pooler.options(options()));
        let store = PostgresStore::builder(pool)
            .with_schema(&database.schema)
            .build()
            .unwrap();
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(Mutex::new(log.reopen().unwrap()))
            .finish();
        let logging = tracing::subscriber::set_default(subscriber);
        store.verify().await.unwrap();
        drop(logging);
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(log.contains("pooler"), is_warned, "{mode:?}: {log}");
    }
}
