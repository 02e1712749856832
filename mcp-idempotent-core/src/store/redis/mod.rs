//! Records on a Redis or Valkey server, or in a cluster of them: lease mode, for any number of
//! machines.
//!
//! ```no_run
//! use mcp_idempotent_core::store::redis::RedisStore;
//!
//! # async fn open() -> Result<(), mcp_idempotent_core::StoreError> {
//! // One server, or any node of a cluster. This checks that it can keep records.
//! let store = RedisStore::open("redis://user:password@10.0.0.1:6379").await?;
//! # let _ = store; Ok(())
//! # }
//! ```
//!
//! # What to know
//!
//! - **What can be lost.** Redis acknowledges a write before it is safe. A lost claim or result
//!   means that a retry **runs the call again**. So use this store for calls whose repeat is
//!   harmless or noticed, or whose other side honours the downstream key. For money, use
//!   [`PostgresStore`](https://docs.rs/mcp-idempotent-core/latest/mcp_idempotent_core/store/postgres/index.html).
//!
//!   | What happens | `appendfsync always` | `everysec` (default) | no append-only file |
//!   | --- | --- | --- | --- |
//!   | the server process is killed and started again | nothing is lost | nothing, or up to 2 seconds if a slow disk was being flushed: meanwhile Redis acknowledges writes before it writes them to the file | everything since the last snapshot |
//!   | its machine loses power | nothing is lost | up to 2 seconds | everything since the last snapshot |
//!   | a replica takes over | what it had not received: usually milliseconds, under load or a broken network up to the time that the failover takes | the same | the same |
//!
//!   `min-replicas-to-write 1` with a small `min-replicas-max-lag` stops a primary that has lost
//!   its replicas from accepting claims for longer than that lag.
//! - **No eviction.** A server that may evict keys forgets calls when its memory is full.
//!   [`verify`](RedisStore::verify) refuses every `maxmemory-policy` but `noeviction`. Under it a
//!   full server refuses new claims, which are then not executed. It may also refuse results; such
//!   a call is in doubt. So leave room.
//! - **What expires by itself.** A record with a result, or of a released key, has an expiry of its
//!   own in Redis: the end of its retention, tombstone included. A record in progress or in doubt
//!   has none, whatever happens to its process. Only a sweep, or a later claim, removes it, once
//!   `in_doubt_retention` is over. Each claim sweeps two records, so a store that is used does not
//!   grow without a sweep in the background. Tombstones save memory only if there is one.
//! - **The server's clock** decides all times, and is what fencing tokens are made of. Keep the
//!   clocks of primaries and replicas in step: after a failover the new primary's clock counts.
//! - **Tokens.** A token is the server's clock in microseconds, or the last token plus one if that
//!   is larger. So tokens grow, even after a record was released or swept, after a restart that
//!   lost the last seconds, and after a failover to a replica whose clock is in step. A mere
//!   counter would come back from a failover with tokens that were given out before.
//! - **Clusters.** All keys of a store have the same part in braces, and so are in one slot. One
//!   script can then change records, indexes and the last token at once, which two records of one
//!   call need while a secret is being replaced. So the store is on one primary and its replicas.
//!   To spread several applications over a cluster, give each a
//!   [prefix](RedisStoreBuilder::with_key_prefix) of its own. The slot may move while calls run.
//!   The names of the keys are in `docs/stored-format.md`.
//! - **A lost answer.** Each change carries a mark, which the record keeps. If the connection is
//!   lost, the script is sent again and knows whether it has already run. (A release that keeps
//!   nothing leaves nothing to recognise it by; it then counts as fenced.)
//! - **Bounds.** Each question is answered within
//!   [the wait bound](RedisStoreBuilder::with_wait_bound), or refused as
//!   [`Unavailable`](StoreErrorKind::Unavailable). A connection that falls silent is replaced.
//! - **Versions.** Redis 6 or later, and Valkey. Tested with Redis 7.0 and Valkey 9.1. A proxy must
//!   pass scripts on. Sentinel is not supported: give an address that follows the primary.
//! - **TLS** is up to you: for `rediss://` give the crate `redis` one of its TLS features, such
//!   as `tokio-rustls-comp`.
//! - **Rights.** A user for this store alone, with the default key prefix:
//!
//! ```text
//! ACL SETUSER idempotency on >secret ~{mcp_idempotent}:* +eval +evalsha +time +hello +auth +select +ping +info +cluster +get +set +hget +hmget +hset +del +unlink +pexpireat +zadd +zrem +zscore +zrangebyscore
//! ```

mod builder;
mod error;
mod lease;
mod link;
mod list;
mod operator;
mod reply;
mod script;
mod verify;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use redis::{RedisResult, Value};
use tokio::time::timeout;

pub use self::builder::RedisStoreBuilder;
use self::{
    error::{ends_connection, store_error},
    link::Link,
    script::{Call, Script},
};
use crate::{
    error::CommitOutcome,
    fingerprint::RecordId,
    store::{StoreError, StoreErrorKind},
};

/// How often a call is sent if its connection is lost. A script recognises that it has already
/// run.
const TRIES: u32 = 2;

/// Keeps records on a Redis or Valkey server. Clones share one connection. See the [module](self).
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

struct Shared {
    link: Link,
    prefix: Box<str>,
    wait_bound: Duration,
}

impl RedisStore {
    fn on_record(&self, script: &'static Script, id: RecordId) -> Call {
        Call::on_record(script, &self.shared.prefix, id)
    }

    fn on_all(&self, script: &'static Script) -> Call {
        Call::on_all(script, &self.shared.prefix)
    }

    async fn run(&self, doing: &str, call: &Call) -> Result<Value, StoreError> {
        self.bounded(doing, async {
            let mut tries = 0;
            loop {
                let (number, mut connection) = self.shared.link.connection().await?;
                let answer = call.send(&mut connection).await;
                let Err(error) = answer else {
                    return answer;
                };
                tries += 1;
                if !ends_connection(&error) {
                    return Err(error);
                }
                self.shared.link.give_up(number).await;
                if tries == TRIES {
                    return Err(error);
                }
            }
        })
        .await
    }

    async fn bounded<T>(
        &self,
        doing: &str,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, StoreError> {
        match timeout(self.shared.wait_bound, answer).await {
            Ok(answer) => answer.map_err(|error| store_error(doing, error)),
            Err(elapsed) => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!("Redis store: {doing}: the server did not answer in time"),
            )
            .with_outcome(CommitOutcome::Unknown)
            .with_source(elapsed)),
        }
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}
