//! A primary and a standby that streams from it: demotion, promotion, and what is lost with them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use mcp_idempotent_core::{
    Store, TransactionStore,
    store::{
        Claim, Claimed, End, Ended, Lease, LeaseEnd, StoreError, StoreErrorKind,
        postgres::PostgresStore,
    },
};
use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    database::{Database, claim, lease, result, text_of},
    kit::cluster::Cluster,
};

const HOUR: Duration = Duration::from_secs(3600);

/// A primary with our tables, and a standby that has them too.
struct Pair {
    primary: Arc<Cluster>,
    standby: Cluster,
    /// Of the primary.
    database: Database,
}

impl Pair {
    async fn start() -> Self {
        let primary = Arc::new(Cluster::start());
        let standby = primary.standby();
        let options = primary.options();
        let database = Database::on(
            options.clone(),
            options,
            |pool| pool,
            |store| store.with_recovery_timeout(Duration::from_secs(1)),
        )
        .await;
        let pair = Self {
            primary,
            standby,
            database,
        };
        pair.until_replicated().await;
        pair
    }

    async fn until_replicated(&self) {
        let written: String = sqlx::query_scalar("SELECT pg_current_wal_flush_lsn()::text")
            .fetch_one(&self.database.outside)
            .await
            .unwrap();
        self.database
            .until(&format!(
                "SELECT coalesce(bool_or(replay_lsn >= '{written}'), false) FROM pg_stat_replication"
            ))
            .await;
    }

    /// From now on the standby misses what the primary commits.
    async fn part(&self) {
        let pool = pool(&self.standby, 1);
        for sql in [
            "ALTER SYSTEM SET primary_conninfo = ''",
            "SELECT pg_reload_conf()",
        ] {
            sqlx::raw_sql(sql).execute(&pool).await.unwrap();
        }
        self.database
            .until("SELECT NOT EXISTS (SELECT FROM pg_stat_replication)")
            .await;
    }

    /// The primary is gone, and the standby takes its place.
    fn fail_over(&self) {
        self.primary.stop_immediately();
        self.standby.promote();
    }

    fn store(&self, pool: PgPool) -> PostgresStore {
        PostgresStore::builder(pool)
            .with_schema(&self.database.schema)
            .build()
            .unwrap()
    }

    /// A store on the server that was the standby.
    fn store_there(&self) -> PostgresStore {
        self.store(pool(&self.standby, 8))
    }

    /// The effects on the server that was the standby, and how often each is there.
    async fn effects_there(&self) -> BTreeMap<String, i64> {
        let counted = "SELECT what, count(*) FROM {s}.effects GROUP BY what";
        let rows: Vec<(String, i64)> = sqlx::query_as(self.database.sql(counted))
            .fetch_all(&pool(&self.standby, 1))
            .await
            .unwrap();
        rows.into_iter().collect()
    }
}

fn pool(server: &Cluster, size: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(size)
        .connect_lazy_with(server.options())
}

/// One call, with one effect and the key as its result.
async fn call(database: &Database, store: &PostgresStore, claim: &Claim) -> Result<String, String> {
    let key = claim.key_prefix.as_deref().unwrap().to_owned();
    let mut transaction = match store.begin(&claim.call, Some(claim)).await {
        Ok(Claimed::New(transaction)) => transaction,
        Ok(Claimed::Found(record)) => return Ok(text_of(&record)),
        other => return Err(format!("{other:?}")),
    };
    let insert = database.sql("INSERT INTO {s}.effects VALUES ($1)");
    sqlx::query(insert)
        .bind(&key)
        .execute(&mut *transaction)
        .await
        .map_err(|error| error.to_string())?;
    match store
        .end(transaction, Some(claim), End::Commit(result(&key)))
        .await
    {
        Ended::AsAsked(_) => Ok(key),
        other => Err(format!("{other:?}")),
    }
}

fn claims(prefix: &str, count: usize) -> Vec<Claim> {
    let keys = (0..count).map(|number| format!("{prefix}{number}"));
    keys.map(|key| claim(&key, "{}")).collect()
}

fn is_passing<T: std::fmt::Debug>(answer: Result<T, StoreError>) {
    let error = answer.expect_err("a standby takes no writes");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
}

/// As when the name of the server leads to the demoted one for a while.
#[tokio::test]
async fn a_connection_to_a_demoted_server_is_closed_and_the_next_call_reaches_the_primary() {
    let pair = Pair::start().await;
    let before = claim("before", "{}");
    let held = lease(&pair.database.store, &before).await;
    pair.until_replicated().await;
    let pool = pool(&pair.standby, 3);
    let store = pair.store(pool.clone());
    let connections = [
        pool.acquire().await,
        pool.acquire().await,
        pool.acquire().await,
    ];
    drop(connections);
    let new = claim("new", "{}");
    is_passing(store.begin(&new.call, Some(&new)).await);
    is_passing(store.begin(&new.call, None).await);
    is_passing(store.claim(&new).await);
    is_passing(store.renew(&held, HOUR).await);
    is_passing(store.complete(&held, result("done")).await);
    is_passing(store.sweep(10).await);
    is_passing(store.verify().await);
    // Whatever is connected after this is connected to the primary.
    pool.set_connect_options(pair.primary.options());
    let answered = call(&pair.database, &store, &new).await;
    assert_eq!(answered, Ok("new".to_owned()));
    let completed = store.complete(&held, result("done")).await;
    assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
    assert_eq!(pair.database.effects().await, ["new"]);
}

/// As on a primary that was made read-only and not restarted, because its disk is full, say.
#[tokio::test]
async fn a_connection_whose_transactions_begin_read_only_is_closed_before_a_handler_runs() {
    let database =
        Database::with_options(|server| server.options([("default_transaction_read_only", "on")]))
            .await;
    let new = claim("new", "{}");
    is_passing(database.store.begin(&new.call, Some(&new)).await);
    is_passing(database.store.begin(&new.call, None).await);
    is_passing(database.store.claim(&new).await);
    let server = PgConnectOptions::clone(&database.outside.connect_options());
    database.pool.set_connect_options(server);
    let answered = call(&database, &database.store, &new).await;
    assert_eq!(answered, Ok("new".to_owned()));
    assert_eq!(database.effects().await, ["new"]);
}

#[tokio::test]
async fn after_a_failover_to_a_synchronous_standby_each_answered_call_is_replayed() {
    let pair = Pair::start().await;
    for sql in [
        "ALTER SYSTEM SET synchronous_standby_names = '*'",
        "SELECT pg_reload_conf()",
    ] {
        pair.database.execute(sql).await;
    }
    pair.database
        .until("SELECT bool_and(sync_state = 'sync') FROM pg_stat_replication")
        .await;
    let claims = claims("k", 60);
    let (first, second) = claims.split_at(20);
    for claim in first {
        let answered = call(&pair.database, &pair.database.store, claim).await;
        answered.unwrap();
    }
    // The primary ends among these.
    let racing = join_all(
        second
            .iter()
            .map(|claim| async { call(&pair.database, &pair.database.store, claim).await }),
    );
    let ending = tokio::task::spawn_blocking({
        let primary = Arc::clone(&pair.primary);
        move || primary.stop_immediately()
    });
    let (answers, ended) = tokio::join!(racing, ending);
    ended.unwrap();
    pair.standby.promote();
    let store = pair.store_there();
    let earlier = pair.effects_there().await;
    for (claim, answer) in second.iter().zip(answers) {
        let key = claim.key_prefix.as_deref().unwrap();
        assert!(
            answer.is_err() || earlier.contains_key(key),
            "{key}: {answer:?}"
        );
    }
    for claim in &claims {
        let again = call(&pair.database, &store, claim).await;
        assert_eq!(again.as_deref(), Ok(claim.key_prefix.as_deref().unwrap()));
    }
    let effects = pair.effects_there().await;
    assert_eq!(effects.len(), claims.len());
    assert!(effects.values().all(|count| *count == 1), "{effects:?}");
}

#[tokio::test]
async fn a_failover_to_an_asynchronous_standby_loses_record_and_effect_together() {
    let pair = Pair::start().await;
    let (kept, lost) = (claims("kept", 10), claims("lost", 10));
    for claim in &kept {
        call(&pair.database, &pair.database.store, claim)
            .await
            .unwrap();
    }
    pair.until_replicated().await;
    pair.part().await;
    for claim in &lost {
        call(&pair.database, &pair.database.store, claim)
            .await
            .unwrap();
    }
    pair.fail_over();
    let store = pair.store_there();
    let effects = pair.effects_there().await;
    assert_eq!(effects.len(), kept.len(), "{effects:?}");
    for claim in kept.iter().chain(&lost) {
        call(&pair.database, &store, claim).await.unwrap();
    }
    let effects = pair.effects_there().await;
    assert_eq!(effects.len(), kept.len() + lost.len());
    assert!(effects.values().all(|count| *count == 1), "{effects:?}");
}

/// The sequence's log runs ahead of its numbers. So the standby counts on from a number that it heard of,
/// and gives out again what was given out since.
#[tokio::test]
async fn no_fencing_token_is_used_twice_after_a_failover_that_lost_claims() {
    let pair = Pair::start().await;
    let claims = claims("k", 100);
    // The first of them is replicated.
    lease(&pair.database.store, &claim("seen", "{}")).await;
    pair.until_replicated().await;
    pair.part().await;
    let mut old: Vec<Lease> = Vec::new();
    for claim in &claims {
        old.push(lease(&pair.database.store, claim).await);
    }
    pair.fail_over();
    let store = pair.store_there();
    // In the order in which the sequence would give each its old number again, if it did.
    let again = lease(&store, &claim("next", "{}")).await;
    let (earlier, later) = claims.split_at(old.partition_point(|old| old.token <= again.token));
    for claim in later.iter().chain(earlier) {
        let new = lease(&store, claim).await;
        let old = old.iter().find(|old| old.id == claim.id).unwrap();
        assert!(new.token > old.token, "{old:?} {new:?}");
        // The handler of the lost claim is late.
        let late = store.complete(old, result("late")).await;
        assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
        let completed = store.complete(&new, result("new")).await;
        assert!(matches!(completed, Ok(LeaseEnd::Done(_))), "{completed:?}");
    }
}
