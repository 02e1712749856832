//! The author's hook that is told of replays.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use mcp_idempotent_core::{Replay, Scope, Timestamp};

use crate::call::{Incoming, Object, scope::ScopeSource};

/// A call that gets the result of another one. Its handler does not run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ReplayedCall<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// Whose call it is, if it has a scope.
    pub scope: Option<Scope>,
    /// Its arguments, without a key argument that was added to the tool's schema.
    pub arguments: Option<&'a Object>,
    /// Its `_meta`.
    pub meta: &'a Object,
    /// When the result was recorded. `None` for an intermediate round, which is not recorded.
    pub at: Option<Timestamp>,
    /// Whether it waited for a running call; otherwise it found a record.
    pub joined: bool,
}

/// See [`IdempotencyBuilder::with_on_replay`](crate::IdempotencyBuilder::with_on_replay).
#[derive(Clone)]
pub(crate) struct ReplayHook(pub(crate) Arc<dyn Fn(&ReplayedCall<'_>) + Send + Sync>);

impl ReplayHook {
    pub(in crate::call) fn tell<C: Incoming>(
        &self,
        call: &C,
        source: &ScopeSource,
        replay: &Replay,
    ) {
        let told = catch_unwind(AssertUnwindSafe(|| {
            (self.0)(&ReplayedCall {
                tool: call.tool(),
                scope: call.scope(source).ok(),
                arguments: call.arguments(),
                meta: call.meta(),
                at: replay.at,
                joined: replay.joined,
            });
        }));
        if told.is_err() {
            tracing::error!("the hook that is told of replays panicked");
        }
    }
}

impl fmt::Debug for ReplayHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplayHook")
    }
}
