//! What a run needs to know about a call, whichever door it came through.

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{RecordId, Scope, engine::Round};
use tokio_util::sync::CancellationToken;

use super::{
    Object,
    after_commit::AfterCommit,
    scope::{AuthorizeHook, Denied, NoScope, ScopeSource},
};

/// A call as a door received it.
pub(crate) trait Incoming: Send + Sync + 'static {
    fn tool(&self) -> &str;

    fn arguments(&self) -> Option<&Object>;

    fn meta(&self) -> &Object;

    /// Which round of a multi round-trip call it is.
    fn round(&self) -> Round;

    /// Gives the handler a cancellation token of its own, which also fires with the caller's, and
    /// returns it.
    fn own_token(&mut self) -> CancellationToken;

    /// Notes the record that the call has claimed.
    fn claimed(&mut self, record: RecordId);

    /// Lets the handler say what is to be done once its transaction is committed.
    fn offer(&mut self, _after: AfterCommit) {}

    /// Removes the key argument that was added to the tool's schema.
    fn remove_argument(&mut self, name: &str);

    /// Tells the call which record it belongs to. Called before the record is claimed.
    fn identified(&self, _record: RecordId) {}

    /// Whose call it is.
    fn scope(&self, source: &ScopeSource) -> Result<Scope, NoScope>;

    /// Asks the author's hook whether the caller may have an answer.
    fn authorize<'a>(
        &'a self,
        hook: &'a AuthorizeHook,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<(), Denied>>;
}
