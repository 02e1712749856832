//! Setting up a store.

use std::{fmt, sync::Arc, time::Duration};

use redis::{ConnectionInfo, IntoConnectionInfo};

use super::{RedisStore, Shared, error::store_error, link::Link};
use crate::store::{StoreError, StoreErrorKind};

/// The default key prefix.
const DEFAULT_PREFIX: &str = "mcp_idempotent";

impl RedisStore {
    /// Connects to a server or a cluster, and [verifies](Self::verify) it. It finds out whether it
    /// is a cluster. Takes a URL such as `redis://user:password@host:6379/0`, or what the driver
    /// makes of one.
    ///
    /// # Errors
    ///
    /// The same as for [`build`](RedisStoreBuilder::build) and [`verify`](Self::verify). Nothing
    /// was changed.
    pub async fn open(server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        let store = Self::builder().with_server(server)?.build()?;
        store.verify().await?;
        Ok(store)
    }

    /// Starts building a store.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder {
            nodes: Vec::new(),
            prefix: DEFAULT_PREFIX.to_owned(),
            wait_bound: RedisStoreBuilder::DEFAULT_WAIT_BOUND,
        }
    }
}

/// Builds a [`RedisStore`].
#[must_use]
pub struct RedisStoreBuilder {
    nodes: Vec<ConnectionInfo>,
    prefix: String,
    wait_bound: Duration,
}

impl RedisStoreBuilder {
    /// How long a call waits for the server before it is refused as unavailable: 5 seconds.
    pub const DEFAULT_WAIT_BOUND: Duration = Duration::from_secs(5);

    /// Names the server. For a cluster, name several nodes: the first one that answers lists the
    /// others.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured): this is not an address, or it asks for TLS
    /// and the crate `redis` was built without it (see the [module](super)).
    pub fn with_server(mut self, server: impl IntoConnectionInfo) -> Result<Self, StoreError> {
        let node = server
            .into_connection_info()
            .map_err(|error| store_error("reading the address", error))?;
        self.nodes.push(node);
        Ok(self)
    }

    /// The beginning of every key; the default is `mcp_idempotent`. Stores with different prefixes
    /// share nothing.
    pub fn with_key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one question to the server may take, in all: connecting, asking, and asking again
    /// if an answer was lost. Keep it well below the shortest lease.
    pub fn with_wait_bound(mut self, wait_bound: Duration) -> Self {
        self.wait_bound = wait_bound;
        self
    }

    /// Checks the settings. Nothing is connected yet: [`verify`](RedisStore::verify) the store at
    /// start-up.
    ///
    /// # Errors
    ///
    /// [`Misconfigured`](StoreErrorKind::Misconfigured): no server is named, or the prefix is not 1
    /// to 40 ASCII letters, digits, underscores, hyphens, dots and colons.
    pub fn build(self) -> Result<RedisStore, StoreError> {
        if self.nodes.is_empty() {
            return Err(misconfigured("name a server with `with_server`".to_owned()));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        if self.prefix.is_empty() || self.prefix.len() > 40 || !self.prefix.bytes().all(allowed) {
            return Err(misconfigured(format!(
                "{:?} cannot begin a key; use 1 to 40 ASCII letters, digits, and `_-.:`",
                self.prefix
            )));
        }
        Ok(RedisStore {
            shared: Arc::new(Shared {
                link: Link::new(self.nodes, self.wait_bound),
                prefix: self.prefix.into(),
                wait_bound: self.wait_bound,
            }),
        })
    }
}

fn misconfigured(message: String) -> StoreError {
    StoreError::new(
        StoreErrorKind::Misconfigured,
        format!("Redis store: {message}"),
    )
}

/// Without addresses, which may hold a password.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("wait_bound", &self.wait_bound)
            .finish_non_exhaustive()
    }
}
