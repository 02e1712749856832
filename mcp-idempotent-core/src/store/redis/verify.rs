//! Whether a server can keep records.

use std::collections::HashMap;

use redis::{
    RedisResult, Value,
    cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo},
};

use super::{RedisStore, link::Connection, reply::read, script};
use crate::{
    fingerprint::RecordId,
    store::{StoreError, StoreErrorKind},
};

impl RedisStore {
    /// Checks that the server keeps what it is given: it must not evict keys, and must let scripts
    /// run. In a cluster, all primaries are asked. Changes nothing. A server without an append-only
    /// file is accepted, with a warning in the log.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured), with a message that says what to do; or
    /// the server did not answer.
    pub async fn verify(&self) -> Result<(), StoreError> {
        let answers = self
            .bounded("asking for the settings", async {
                let (_, mut connection) = self.shared.link.connection().await?;
                infos(&mut connection).await
            })
            .await?;
        for (node, answer) in answers {
            check(&node, &read::<String>(answer)?)?;
        }
        let probe = self
            .on_record(&script::SHOW, RecordId::from_bytes([0; 32]))
            .arg("");
        self.run("running a script", &probe).await.map(drop)
    }
}

/// What each primary says about itself.
async fn infos(connection: &mut Connection) -> RedisResult<HashMap<String, Value>> {
    let mut ask = redis::cmd("INFO");
    ask.arg("all");
    match connection {
        Connection::Server(server) => {
            let answer = ask.query_async(server).await?;
            Ok(HashMap::from([("the server".to_owned(), answer)]))
        }
        Connection::Cluster(cluster) => {
            let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
            let answers = cluster.route_command(ask, primaries).await?;
            Ok(redis::from_redis_value(answers)?)
        }
    }
}

fn check(node: &str, info: &str) -> Result<(), StoreError> {
    let setting = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let policy = setting("maxmemory_policy").unwrap_or("unknown");
    if policy != "noeviction" {
        return Err(StoreError::new(
            StoreErrorKind::Misconfigured,
            format!(
                "Redis store: {node} may evict records when its memory is full (its \
                 `maxmemory-policy` is `{policy}`), and a retry of an evicted call would run \
                 again; set `maxmemory-policy noeviction`, or use a server of its own"
            ),
        ));
    }
    if setting("aof_enabled") == Some("0") {
        tracing::warn!(
            node,
            "the Redis server keeps no append-only file: a restart loses the last records, and \
             their calls may run again; set `appendonly yes`"
        );
    }
    Ok(())
}
