//! What a relay is told.

use std::{collections::HashMap, time::Duration};

use mcp_idempotent_core::{KeyRequirement, OnDoubt};

/// Which calls without a key are recognised by their arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Derive {
    /// Those of every tool that does not say `readOnlyHint: true`.
    #[default]
    All,
    /// Those of tools that say `readOnlyHint: false` or `destructiveHint: true`.
    Annotated,
    /// None. Only calls with a key are protected.
    None,
}

/// What a JSON-RPC error of the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ServerError {
    /// That nothing happened: the same call runs again.
    #[default]
    NothingHappened,
    /// That the tool may have acted: the call is in doubt.
    MayHaveActed,
}

/// What a relay does with the calls of one tool, whatever the server's annotations say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ToolRule {
    /// Passes all calls on, even those with a key.
    pub passes: bool,
    /// What the tool requires of a key.
    pub key: Option<KeyRequirement>,
    /// What happens to a call whose outcome is unknown. A relay cannot [verify](OnDoubt::Verify).
    pub on_doubt: Option<OnDoubt>,
}

/// The settings of a [`Relay`](super::Relay). Each has a default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RelaySettings {
    /// Which calls without a key are recognised by their arguments.
    pub derive: Derive,
    /// Takes part in the identity of calls without a key, so that two runs of a relay do not answer
    /// each other's calls. `None`: each relay makes its own.
    pub run_id: Option<String>,
    /// What happens to a call whose outcome is unknown. `None`: [`OnDoubt::Rerun`] for tools that
    /// say `idempotentHint: true`, [`OnDoubt::Fail`] for all others.
    pub on_doubt: Option<OnDoubt>,
    /// What a JSON-RPC error of the server says.
    pub server_error: ServerError,
    /// Forwards the client's cancellation of a protected call. Its outcome is then unknown.
    pub forward_cancel: bool,
    /// Tools with a rule of their own.
    pub tools: HashMap<String, ToolRule>,
    /// The longest message that is read whole, in bytes. A longer line passes in parts, unread.
    pub max_message_bytes: usize,
    /// How long protected calls may go on after the client has closed its side.
    pub drain: Duration,
}

impl RelaySettings {
    /// The longest message that is read whole: 32 MiB.
    pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;
    /// How long protected calls may go on after the client has closed its side: 30 seconds.
    pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            derive: Derive::default(),
            run_id: None,
            on_doubt: None,
            server_error: ServerError::default(),
            forward_cancel: false,
            tools: HashMap::new(),
            max_message_bytes: Self::DEFAULT_MAX_MESSAGE_BYTES,
            drain: Self::DEFAULT_DRAIN,
        }
    }
}
