//! What can be wrong with a SQLite file.

use std::time::Duration;

use mcp_idempotent_tower::SqliteStore;
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};

use super::{Examined, Finding, sweeping};

pub(super) async fn examine(store: &SqliteStore, pool: &SqlitePool, prefix: &str) -> Examined {
    let mut largest_token = None;
    let mut findings = vec![Finding::of(
        "tables",
        "as this version needs them, in WAL mode",
        store.verify().await,
    )];
    let examined = async {
        findings.push(file(pool).await?);
        let (found, token) = records(pool, prefix).await?;
        findings.push(found);
        largest_token = token;
        Ok::<_, sqlx::Error>(())
    };
    let asked = examined.await;
    Examined::until(asked, findings, largest_token)
}

async fn file(pool: &SqlitePool) -> Result<Finding, sqlx::Error> {
    let said: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(pool)
        .await?;
    Ok(if said == "ok" {
        Finding::good("file", "is sound")
    } else {
        Finding::wrong(
            "file",
            said,
            "restore it from a backup; do not run servers on it",
        )
    })
}

/// What the records say, and their largest token.
async fn records(pool: &SqlitePool, prefix: &str) -> Result<(Finding, Option<i64>), sqlx::Error> {
    let text = format!(
        "SELECT (SELECT max(token) FROM {prefix}record), \
         (SELECT strftime('%s', 'now') - min(purge_at) / 1000000 FROM {prefix}record \
          WHERE purge_at / 1000000 < CAST(strftime('%s', 'now') AS INTEGER))"
    );
    let row = sqlx::query(AssertSqlSafe(text)).fetch_one(pool).await?;
    let waiting: Option<i64> = row.try_get(1)?;
    let waiting = waiting.and_then(|seconds| Some(Duration::from_secs(seconds.try_into().ok()?)));
    Ok((sweeping(waiting), row.try_get(0)?))
}
