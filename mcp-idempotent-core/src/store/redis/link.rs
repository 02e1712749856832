//! The connection: to one server, or to a cluster. All calls share it.

use std::{collections::HashMap, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, RedisError, RedisFuture,
    RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
};
use tokio::sync::Mutex;

/// How often the driver follows a slot that has moved, or waits for a failover, within one call.
const CLUSTER_RETRIES: u32 = 8;

pub(super) struct Link {
    nodes: Vec<ConnectionInfo>,
    bound: Duration,
    current: Mutex<Current>,
}

#[derive(Default)]
struct Current {
    /// The connection's number, so that it is replaced only once.
    number: u64,
    connection: Option<Connection>,
}

#[derive(Clone)]
pub(super) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Link {
    /// To these nodes; more than one is for a cluster only. `bound` is the time for a whole call.
    pub(super) fn new(nodes: Vec<ConnectionInfo>, bound: Duration) -> Self {
        Self {
            nodes,
            bound,
            current: Mutex::default(),
        }
    }

    /// The connection, and its number.
    pub(super) async fn connection(&self) -> RedisResult<(u64, Connection)> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &current.connection {
            return Ok((current.number, connection.clone()));
        }
        let connection = self.connect().await?;
        current.number += 1;
        current.connection = Some(connection.clone());
        Ok((current.number, connection))
    }

    /// Gives up the connection with this number. The next call makes another.
    pub(super) async fn give_up(&self, number: u64) {
        let mut current = self.current.lock().await;
        if current.number == number {
            current.connection = None;
        }
    }

    async fn connect(&self) -> RedisResult<Connection> {
        let mut failed = RedisError::from((ErrorKind::InvalidClientConfig, "no server is named"));
        for node in &self.nodes {
            match self.connect_to(node).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn connect_to(&self, node: &ConnectionInfo) -> RedisResult<Connection> {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.bound / 4))
            .set_response_timeout(Some(self.bound / 2));
        let mut connection = Client::open(node.clone())?
            .get_multiplexed_async_connection_with_config(&settings)
            .await?;
        let hello: HashMap<String, Value> =
            redis::cmd("HELLO").query_async(&mut connection).await?;
        let is = |name: &str, value: &str| {
            let said = hello.get(name).cloned();
            said.is_some_and(|said| {
                redis::from_redis_value::<String>(said).is_ok_and(|said| said == value)
            })
        };
        if is("mode", "cluster") {
            return self.connect_to_cluster().await;
        }
        if self.nodes.len() > 1 {
            // After a failover both could call themselves primaries.
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "several servers are named, and they are not a cluster",
            )));
        }
        if !is("role", "master") {
            // It would answer look-ups with what it has, which may be out of date.
            return Err(RedisError::from(std::io::Error::new(
                std::io::ErrorKind::ConnectionRefused,
                "the server is a replica",
            )));
        }
        Ok(Connection::Server(connection))
    }

    async fn connect_to_cluster(&self) -> RedisResult<Connection> {
        let client = ClusterClient::builder(self.nodes.clone())
            .connection_timeout(self.bound / 4)
            .response_timeout(self.bound / 2)
            .overall_response_timeout(Some(self.bound))
            .retries(CLUSTER_RETRIES)
            .build()?;
        Ok(Connection::Cluster(client.get_async_connection().await?))
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Server(connection) => connection.req_packed_command(command),
            Self::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Server(connection) => connection.req_packed_commands(commands, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(commands, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Server(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}
