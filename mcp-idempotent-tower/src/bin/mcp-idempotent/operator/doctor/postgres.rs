//! What can be wrong with Postgres.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use mcp_idempotent_tower::PostgresStore;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, Row as _};

use super::{Examined, Finding, clock, sweeping};

pub(super) async fn examine(store: &PostgresStore, pool: &PgPool, schema: &str) -> Examined {
    let mut largest_token = None;
    let mut findings = vec![Finding::of(
        "tables and rights",
        "as this version needs them",
        store.verify().await,
    )];
    let examined = async {
        let (mut first, mut second) = (pool.acquire().await?, pool.acquire().await?);
        findings.extend(server(&mut first).await?);
        findings.extend(sessions(&mut first, &mut second).await?);
        let (found, token) = records(&mut first, schema).await?;
        findings.extend(found);
        largest_token = token;
        Ok::<_, sqlx::Error>(())
    };
    let asked = examined.await;
    Examined::until(asked, findings, largest_token)
}

async fn server(session: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let row = sqlx::query(
        "SELECT pg_catalog.current_setting('server_version'), pg_catalog.pg_is_in_recovery(), \
         pg_catalog.current_setting('transaction_read_only'), \
         pg_catalog.current_setting('synchronous_commit'), \
         pg_catalog.current_setting('fsync'), \
         (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1e6)::bigint",
    )
    .fetch_one(session)
    .await?;
    let mut findings = vec![Finding::good(
        "server",
        format!("Postgres {}", row.try_get::<&str, _>(0)?),
    )];
    findings.push(if row.try_get(1)? {
        Finding::wrong("primary", "this server is a standby", "name the primary")
    } else if row.try_get::<&str, _>(2)? == "on" {
        Finding::wrong(
            "primary",
            "sessions of this role are read-only",
            "look for `default_transaction_read_only` in the role, the database and the server",
        )
    } else {
        Finding::good("primary", "this server can be written to")
    });
    let synchronous_commit: &str = row.try_get(3)?;
    findings.push(if synchronous_commit == "off" {
        Finding::warning(
            "durability",
            "`synchronous_commit` is off: a crash can take the last transactions, record and effect together",
            "that is safe for effects in this database; lease mode commits durably in any case",
        )
    } else {
        Finding::good("durability", format!("`synchronous_commit` is {synchronous_commit}"))
    });
    if row.try_get::<&str, _>(4)? == "off" {
        findings.push(Finding::warning(
            "fsync",
            "is off: a crash of the machine can take any record, or the database",
            "set `fsync = on`",
        ));
    }
    findings.push(clock(row.try_get(5)?));
    Ok(findings)
}

/// Whether two sessions exclude each other, and are really two.
async fn sessions(
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> Result<Vec<Finding>, sqlx::Error> {
    // For this run alone, because another `doctor` may be running here.
    let name = RandomState::new().hash_one(0).cast_signed();
    const PID: &str = "SELECT pg_catalog.pg_backend_pid()";
    const TRY: &str = "SELECT pg_catalog.pg_try_advisory_xact_lock($1)";
    let idle: i32 = sqlx::query_scalar(PID)
        .persistent(false)
        .fetch_one(&mut *first)
        .await?;
    let mut other = second.begin().await?;
    let in_use: i32 = sqlx::query_scalar(PID)
        .persistent(false)
        .fetch_one(&mut *other)
        .await?;
    let mut this = first.begin().await?;
    let lock = || sqlx::query_scalar(TRY).bind(name).persistent(false);
    let mine: bool = lock().fetch_one(&mut *this).await?;
    let theirs: bool = lock().fetch_one(&mut *other).await?;
    this.rollback().await?;
    other.rollback().await?;
    let pooler = if idle == in_use {
        Finding::warning(
            "pooler",
            "two connections were served by one session: there is a pooler in transaction mode",
            "the store works behind it; your own queries must not rely on session state (see docs/operating.md)",
        )
    } else {
        Finding::good("pooler", "none that shares sessions was noticed")
    };
    let locks = if mine && !theirs {
        Finding::good("advisory locks", "exclude other sessions")
    } else {
        Finding::wrong(
            "advisory locks",
            "do not exclude: two calls with one key could run at once",
            "use a Postgres server, not one that only speaks its protocol",
        )
    };
    Ok(vec![pooler, locks])
}

/// What the records say, and their largest token.
async fn records(
    session: &mut PgConnection,
    schema: &str,
) -> Result<(Vec<Finding>, Option<i64>), sqlx::Error> {
    let text = format!(
        "SELECT (SELECT pg_catalog.max(token) FROM {schema}.records), \
         (SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() \
             - pg_catalog.min(CASE WHEN state = 1 THEN coalesce(purge_at, expires_at) ELSE expires_at END)) * 1e6)::bigint \
          FROM {schema}.records WHERE expires_at < pg_catalog.clock_timestamp() AND state <> 0 \
          AND (state <> 1 OR coalesce(purge_at, expires_at) < pg_catalog.clock_timestamp())), \
         EXISTS (SELECT 1 FROM pg_catalog.pg_index WHERE indisprimary AND indisvalid \
          AND indrelid = '{schema}.records'::pg_catalog.regclass AND indnkeyatts = 1 \
          AND indkey[0] = (SELECT attnum FROM pg_catalog.pg_attribute \
              WHERE attrelid = indrelid AND attname = 'id'))"
    );
    let row = sqlx::query(AssertSqlSafe(text))
        .persistent(false)
        .fetch_one(session)
        .await?;
    let waiting: Option<i64> = row.try_get(1)?;
    let waiting = waiting.and_then(|micros| Some(Duration::from_micros(micros.try_into().ok()?)));
    let key = if row.try_get(2)? {
        Finding::good("primary key", "is the record's id")
    } else {
        Finding::wrong(
            "primary key",
            "is missing: one key could have two records",
            format!("remove duplicates, then ALTER TABLE {schema}.records ADD PRIMARY KEY (id)"),
        )
    };
    Ok((vec![key, sweeping(waiting)], row.try_get(0)?))
}
