//! What a handler in lease mode is given of its attempt.

use std::{fmt, future::Future, sync::Arc};

use mcp_idempotent_core::{
    Action, BeginError, CommitOutcome, DownstreamKey, ErrorKind, LeaseHandle, NotCurrent, Refusal,
    TransactionStore,
};
use rmcp::{
    ErrorData,
    handler::server::common::{AsRequestContext, FromContextPart},
};
use tokio_util::sync::CancellationToken;

use super::{provenance, refusal, tx::Tx, unprotected::Free};

tokio::task_local! {
    /// The attempt of the call that this task runs.
    static CURRENT: Attempt;
}

/// The running attempt at a tool call in lease mode: a handler without `&mut` transaction under
/// [`#[idempotent]`](macro@crate::idempotent), or under a
/// [`Rule::lease`](crate::layer::Rule::lease) of the layer. A handler takes it as a parameter; one
/// that has no such place (an `AsyncTool`) takes it with [`Attempt::current`].
///
/// While the handler runs its lease is renewed. When the lease is lost all the same (the database was
/// away for longer than the lease, the process was paused, an operator resolved the record), the
/// call's `CancellationToken` fires and what the handler returns is not recorded.
///
/// ```
/// use mcp_idempotent_tower::{Attempt, Idempotency, MemoryStore, NotExecuted, idempotent};
/// use rmcp::{ErrorData, handler::server::wrapper::Parameters, schemars, tool, tool_router};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Refund { charge: String }
///
/// #[derive(Clone)]
/// struct Shop { idempotency: Idempotency<MemoryStore> }
///
/// #[tool_router(server_handler)]
/// impl Shop {
///     /// Refunds a charge.
///     #[idempotent(on_error = in_doubt, on_doubt = rerun)]
///     #[tool]
///     async fn refund(&self, attempt: Attempt, Parameters(refund): Parameters<Refund>) -> Result<String, ErrorData> {
///         let key = attempt.downstream_key("refund");
///         // Nothing has been sent yet, so an error here frees the key.
///         attempt.ensure_current().await.map_err(NotExecuted::mark)?;
///         post_refund(&refund.charge, key.as_str()).await
///     }
/// }
/// # async fn post_refund(charge: &str, key: &str) -> Result<String, ErrorData> { Ok(format!("{charge} {key}")) }
/// ```
#[derive(Clone)]
pub struct Attempt(Kind);

#[derive(Clone)]
enum Kind {
    Leased(LeaseHandle),
    /// In a call that nothing protects.
    Free(Arc<Free>),
}

impl Attempt {
    pub(super) const fn leased(handle: LeaseHandle) -> Self {
        Self(Kind::Leased(handle))
    }

    pub(super) const fn free(free: Arc<Free>) -> Self {
        Self(Kind::Free(free))
    }

    /// The attempt of the call that this task runs, for tools that are given no context.
    ///
    /// # Errors
    ///
    /// As for the extractor: there is none. Nothing was changed.
    pub fn current() -> Result<Self, ErrorData> {
        CURRENT.try_with(Self::clone).map_err(|_| none_running())
    }

    /// A key for a call to another system, for instance in the header `Idempotency-Key` of a payment
    /// API: the same for every attempt at this call, another one for each `step`. A handler with one
    /// outside call can name the step as it likes, and must not change the name while calls are under
    /// way.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        match &self.0 {
            Kind::Leased(handle) => handle.downstream_key(step),
            Kind::Free(free) => free.downstream_key(step),
        }
    }

    /// Asks the store, now, whether this attempt still has its lease, and renews it. To be called
    /// right before the outside call. It narrows the gap and does not close it: only the downstream
    /// key stops what reaches the other side later.
    ///
    /// Ask before [`begin`](Self::begin), not after it: it takes a connection beside the
    /// transaction's, and a transaction above READ COMMITTED cannot complete a lease that was renewed
    /// since its first statement.
    ///
    /// # Errors
    ///
    /// The lease is lost, or the store could not say. Do not make the outside call. Where it is the
    /// only one and was not made, mark the error with [`NotExecuted`](crate::NotExecuted).
    pub async fn ensure_current(&self) -> Result<(), ErrorData> {
        let Kind::Leased(handle) = &self.0 else {
            return Ok(());
        };
        handle.ensure_current().await.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a handler is not sure of its lease"
            );
            refused(&match error {
                NotCurrent::Fenced => Refusal::new(
                    ErrorKind::OutcomeUnknown,
                    CommitOutcome::Unknown,
                    Action::RetrySameKey,
                    "The call lost its lease while it ran, so it stopped. Another attempt or an \
                     operator decides what becomes of it. Send the same call with the same key \
                     again to find out.",
                ),
                _ => Refusal::new(
                    ErrorKind::StoreUnavailable,
                    CommitOutcome::Unknown,
                    Action::RetrySameKey,
                    "The store of idempotency records could not be reached while the call ran, so \
                     it stopped. Send the same call with the same key again to find out.",
                ),
            })
        })
    }

    /// Opens the attempt's transaction, for a tool that acts outside first and writes then: what is
    /// written through it commits together with the result when the handler returns one, if the
    /// attempt still has its lease, and is rolled back otherwise. There is one for each attempt. Begin
    /// it after the outside call, so that no connection is held while the other side takes its time,
    /// and the store's limit on transactions does not stop the handler. Write through `&mut *tx`.
    ///
    /// # Errors
    ///
    /// The lease is lost or of another store, the transaction was begun before, or the store failed.
    /// Nothing was written; the outside call may have been made.
    pub async fn begin<S: TransactionStore>(&self) -> Result<Tx<S>, ErrorData> {
        let begun = match &self.0 {
            Kind::Leased(handle) => handle.begin().await,
            Kind::Free(free) => free.begin().await,
        };
        begun.map(Tx::of).map_err(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a handler could not have a transaction under its lease"
            );
            let kind = match error {
                BeginError::Store(_) => ErrorKind::StoreUnavailable,
                BeginError::Ended => ErrorKind::OutcomeUnknown,
                _ => ErrorKind::Misconfigured,
            };
            refused(&Refusal::new(
                kind,
                CommitOutcome::Unknown,
                Action::RetrySameKey,
                format!("The call could not write its own part: {error}."),
            ))
        })
    }

    /// Ends when the lease is lost while the attempt runs, and never otherwise.
    pub async fn lost(&self) {
        match &self.0 {
            Kind::Leased(handle) => handle.lost().await,
            Kind::Free(_) => std::future::pending().await,
        }
    }

    /// Whether the lease is known to be lost. The store may know better:
    /// [`ensure_current`](Self::ensure_current).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(&self.0, Kind::Leased(handle) if handle.is_lost())
    }

    /// Which attempt at this call it is; the first is 1.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        match &self.0 {
            Kind::Leased(handle) => handle.attempts(),
            Kind::Free(_) => 1,
        }
    }

    /// The fencing token: it grows with each attempt, and is never used twice in a store. A system
    /// that can compare it can refuse a late attempt. `None` in a call that nothing protects.
    #[must_use]
    pub fn token(&self) -> Option<i64> {
        match &self.0 {
            Kind::Leased(handle) => Some(handle.token()),
            Kind::Free(_) => None,
        }
    }

    /// Runs the handler as this attempt, and fires its token when the lease is lost.
    pub(crate) async fn during<F: Future>(self, ct: CancellationToken, handler: F) -> F::Output {
        let attempt = self.clone();
        let handler = CURRENT.scope(self, handler);
        let lost = attempt.lost();
        tokio::pin!(handler, lost);
        tokio::select! {
            biased;
            output = &mut handler => return output,
            () = lost => ct.cancel(),
        }
        handler.await
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("token", &self.token())
            .field("attempts", &self.attempts())
            .field("lost", &self.is_lost())
            .finish()
    }
}

impl<C: AsRequestContext> FromContextPart<C> for Attempt {
    fn from_context_part(context: &mut C) -> Result<Self, ErrorData> {
        let extensions = &context.as_request_context().extensions;
        extensions.get::<Self>().cloned().ok_or_else(none_running)
    }
}

fn none_running() -> ErrorData {
    let message = "This tool takes its attempt (`Attempt`), but it does not run in lease mode. Its \
                   author must put `#[idempotent(on_error = …)]` on it, without a `&mut` transaction, \
                   or wrap the server in a layer whose rule for it is `Rule::lease(…)`.";
    tracing::error!(message, "a handler could not have its attempt");
    refused(&Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    ))
}

/// A refusal that a handler may pass on as ours.
fn refused(refusal: &Refusal) -> ErrorData {
    provenance::sealed(refusal::error_data(refusal))
}
