//! Which round of a multi round-trip call it is.

use mcp_idempotent_core::engine::Round;
use sha2::{Digest as _, Sha256};

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
