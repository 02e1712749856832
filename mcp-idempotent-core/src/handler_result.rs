//! What the handler returned, as far as the engine needs to know.

use bytes::Bytes;

use crate::policy::OnErrorResult;

/// How a handler ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "each kind is a row of the table of what is recorded"
)]
pub enum ResultKind {
    /// A result.
    Success,
    /// A result marked as an error (`isError: true`).
    ErrorResult,
    /// A protocol error (JSON-RPC `error`).
    ProtocolError,
    /// A failure that guarantees that nothing happened (the `NotExecuted` mark).
    NotExecuted,
    /// The handler never ran: its arguments did not parse.
    NotCalled,
    /// The handler needs more input from the client before it can finish.
    InputRequired,
    /// A handle to a task that is still running.
    Task,
    /// The handler produced no result: it panicked, or held its transaction for too long.
    Interrupted,
}

impl ResultKind {
    /// Whether the handler's effect is kept.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Success | Self::Task)
    }

    /// Whether the handler may have acted. It has not if it said so, or never ran.
    #[must_use]
    pub const fn may_have_acted(self) -> bool {
        !matches!(self, Self::NotExecuted | Self::NotCalled)
    }
}

/// A handler's result: its kind, and its encoded bytes if they are needed.
pub trait HandlerResult {
    /// How the handler ended.
    fn kind(&self) -> ResultKind;

    /// Lease mode: what the author's classifier says about a result of kind
    /// [`ResultKind::ErrorResult`]. It takes precedence over the
    /// policy, which decides on `None`.
    fn on_error_result(&self) -> Option<OnErrorResult> {
        None
    }

    /// The bytes to store and to replay. Called at most once, and only if the result is recorded,
    /// shared with calls that joined, or compared with one that the handler committed itself.
    ///
    /// # Errors
    ///
    /// Any error of the serialiser. Nothing is recorded then. In transaction mode nothing is
    /// committed either. In lease mode the handler has already acted, so the outcome is unknown and
    /// the record is in doubt.
    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;
}
