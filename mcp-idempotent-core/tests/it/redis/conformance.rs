//! The conformance suites on a server, and on a cluster.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use mcp_idempotent_core::{
    RecordId, operator_store_conformance,
    store::redis::RedisStore,
    store_conformance,
    testing::{Harness, HarnessResult},
};
use redis::{Script, cluster::ClusterClient};

use super::{Cluster, Server, builder};

/// Moves all times of a record back, and with them its places in the indexes.
const AGE: &str = "
for _, field in ipairs({'created_at', 'lease_until', 'completed_at', 'expires_at', 'purge_at'}) do
    local time = redis.call('HGET', KEYS[1], field)
    if time then
        redis.call('HSET', KEYS[1], field, string.format('%.0f', time - ARGV[2]))
    end
end
for index = 2, 4 do
    local time = redis.call('ZSCORE', KEYS[index], ARGV[1])
    if time then
        redis.call('ZADD', KEYS[index], string.format('%.0f', time - ARGV[2]), ARGV[1])
    end
end
";

/// Two stores on the same records.
struct Records {
    url: String,
    prefix: String,
    store: RedisStore,
    elsewhere: RedisStore,
    /// Its own, which ends with it; without one it is on a cluster.
    server: Option<Server>,
}

impl Records {
    fn on(url: String, prefix: String, server: Option<Server>) -> Self {
        let open = || builder(&url).with_key_prefix(&prefix).build().unwrap();
        let (store, elsewhere) = (open(), open());
        Self {
            url,
            prefix,
            store,
            elsewhere,
            server,
        }
    }
}

impl Harness for Records {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn elsewhere(&self) -> &RedisStore {
        &self.elsewhere
    }

    async fn age(&self, id: RecordId, by: Duration) -> HarnessResult {
        let id = id.to_string();
        let tag = format!("{{{}}}", self.prefix);
        let script = Script::new(AGE);
        let mut aging = script.key(format!("{tag}:record:{id}"));
        for index in ["due", "open", "records"] {
            aging.key(format!("{tag}:{index}"));
        }
        aging.arg(id).arg(by.as_micros().to_string());
        if self.server.is_some() {
            let mut connection = super::connect(&self.url).await;
            return Ok(aging.invoke_async(&mut connection).await?);
        }
        let cluster = ClusterClient::new([&*self.url])?;
        let mut connection = cluster.get_async_connection().await?;
        Ok(aging.invoke_async(&mut connection).await?)
    }
}

mod server {
    use super::*;

    async fn records() -> Records {
        let server = Server::start();
        Records::on(server.url(), "mcp_idempotent".to_owned(), Some(server))
    }

    store_conformance!(records());
    operator_store_conformance!(records());
}

mod cluster {
    use super::*;

    async fn records(cluster: &Cluster) -> Records {
        static RECORDS: AtomicU32 = AtomicU32::new(0);
        let number = RECORDS.fetch_add(1, Ordering::Relaxed);
        Records::on(cluster.url(), format!("records-{number}"), None)
    }

    store_conformance!(
        a_cluster_keeps_every_rule,
        cluster = Cluster::start(3, 0),
        records(&cluster)
    );
    operator_store_conformance!(
        a_cluster_keeps_every_rule_for_operators,
        cluster = Cluster::start(3, 0),
        records(&cluster)
    );
}
