//! What can be wrong with Redis.

use std::collections::HashMap;

use mcp_idempotent_tower::core::store::redis::RedisStore;
use redis::{Client, RedisResult};

use super::{Examined, Finding, chain, clock};

pub(super) async fn examine(store: &RedisStore, client: &Client) -> Examined {
    let mut findings = vec![Finding::of(
        "settings and rights",
        "keys are not evicted, and scripts run",
        store.verify().await,
    )];
    match server(client).await {
        Ok(found) => findings.extend(found),
        Err(error) => findings.push(Finding::wrong(
            "questions",
            format!("could not all be asked: {}", chain(&error)),
            "fix the problems above, and run this again",
        )),
    }
    Examined {
        findings,
        // The scripts draw each token under the same clock and counter as they write it.
        largest_token: None,
    }
}

async fn server(client: &Client) -> RedisResult<Vec<Finding>> {
    let mut connection = client.get_multiplexed_async_connection().await?;
    let text: String = redis::cmd("INFO")
        .arg("all")
        .query_async(&mut connection)
        .await?;
    let info: HashMap<_, _> = text
        .lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect();
    let says = |name: &str| info.get(name).copied().unwrap_or_default();
    let version = match says("valkey_version") {
        "" => format!("Redis {}", says("redis_version")),
        version => format!("Valkey {version}"),
    };
    let mut findings = vec![Finding::good(
        "server",
        format!("{version}, {}", says("redis_mode")),
    )];
    findings.push(match says("role") {
        "master" => Finding::good("primary", "this server can be written to"),
        role => Finding::wrong(
            "primary",
            format!("this server is a {role}"),
            "name the primary",
        ),
    });
    findings.push(durability(&says));
    findings.push(match (says("maxmemory"), says("used_memory")) {
        ("0" | "", used) => Finding::good(
            "memory",
            format!("{used} bytes used, without a limit of its own"),
        ),
        (limit, used) if used.parse().unwrap_or(0.0) > 0.8 * limit.parse().unwrap_or(f64::MAX) => {
            Finding::warning(
                "memory",
                format!("{used} of {limit} bytes are used"),
                "a full server refuses claims and results: raise `maxmemory`, or `records sweep`",
            )
        }
        (limit, used) => Finding::good("memory", format!("{used} of {limit} bytes are used")),
    });
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await?;
    findings.push(clock(seconds * 1_000_000 + micros));
    Ok(findings)
}

fn durability<'a>(says: &impl Fn(&str) -> &'a str) -> Finding {
    if says("aof_enabled") == "0" {
        return Finding::warning(
            "durability",
            "there is no append-only file: a restart takes all records since the last snapshot, and their calls may run again",
            "set `appendonly yes`",
        );
    }
    if says("aof_last_write_status") == "err" {
        return Finding::wrong(
            "durability",
            "the append-only file could not be written",
            "look at the server's disk",
        );
    }
    Finding::good(
        "durability",
        "there is an append-only file. Unless `appendfsync` is `always`, a power loss takes up to 2 seconds",
    )
}
