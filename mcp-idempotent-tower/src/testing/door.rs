//! How a check reaches a server.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::Value;

/// Which of two callers opens a connection. They are different people to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caller {
    /// The one who makes nearly all calls.
    First,
    /// Another one, who must not get the first one's results.
    Other,
}

/// A way to a server. Implement it to check a server that is reached in some other way.
pub trait Door: Send + Sync {
    /// Opens a new connection. Over stdio this starts a new process.
    ///
    /// # Errors
    ///
    /// The future's error says why there is no connection.
    fn open(&self, caller: Caller) -> BoxFuture<'_, Result<Arc<dyn Wire>, String>>;

    /// Whether it can connect as [`Caller::Other`].
    fn has_another_caller(&self) -> bool;

    /// Whether [`Wire::kill`] kills the server.
    fn can_kill(&self) -> bool {
        false
    }
}

/// A connection. Dropping it is what a client does that goes away.
pub trait Wire: Send + Sync {
    /// Sends one message of JSON-RPC. The future of a request gives its answer; that of a notification
    /// gives `None` once it is sent. Dropping the future of a request gives up on its answer.
    ///
    /// # Errors
    ///
    /// The future's error says why there is no answer.
    fn send(&self, message: Value) -> BoxFuture<'static, Result<Option<Value>, String>>;

    /// Kills the server at once, as a crash does, and waits until it is gone.
    fn kill(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
