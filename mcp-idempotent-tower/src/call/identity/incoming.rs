//! What a run needs to know about a call, whichever door it came through.

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{RecordId, Scope, engine::Round};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::scope::{AuthorizeHook, Denied, NoScope, ScopeSource};
use crate::call::{Object, after_commit::AfterCommit};

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

/// The digest of what the client sent back: the request state, and its responses by name with the text of
/// each. Without either it is the first round.
pub(crate) fn round<'a>(
    state: Option<&str>,
    responses: Option<impl Iterator<Item = (&'a str, String)>>,
) -> Round {
    if state.is_none() && responses.is_none() {
        return None;
    }
    let mut digest = Sha256::new();
    let mut field = |text: &str| {
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text);
    };
    if let Some(state) = state {
        field("state");
        field(state);
    }
    if let Some(responses) = responses {
        field("responses");
        for (name, response) in responses {
            field(name);
            field(&response);
        }
    }
    Some(digest.finalize().into())
}
