//! What a handler in transaction mode takes as parameters: the open transaction, and what is to be done after
//! its commit.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use mcp_idempotent_core::{
    Action, Borrowed, CommitOutcome, ErrorKind, Lent, Refusal, TransactionStore, engine::NotLent,
};
use rmcp::{
    ErrorData,
    handler::server::common::{AsRequestContext, FromContextPart},
};

use super::after_commit::AfterCommit;
use crate::call::{not_executed::NotExecuted, provenance, refusal};

/// The open transaction of a tool call behind the [layer](crate::layer), for tools of a rule in
/// [transaction mode](crate::layer::Rule::transaction). It derefs to the store's connection.
///
/// 1. What is written through it commits together with the record when the handler returns a
///    result, or not at all. It has no commit and no rollback; a nested `begin` is a savepoint.
/// 2. It can be taken once in each call. Taking it a second time is an error, and so is taking it
///    where none is open: without a layer, under a rule in lease mode, from a layer over another
///    store, or after the call has ended.
/// 3. Dropping it gives it back. If a task still holds it when the handler returns, nothing is
///    committed, what the task writes is rolled back, and the caller is told that the outcome is
///    unknown.
///
/// A handler takes it as a parameter. A tool without extractors (an `AsyncTool`) calls [`Tx::current`].
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use mcp_idempotent_tower::{SqliteStore, Tx};
/// use rmcp::{ErrorData, handler::server::wrapper::Parameters, schemars, tool, tool_router};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Entry { text: String }
///
/// struct Ledger;
///
/// #[tool_router(server_handler)]
/// impl Ledger {
///     /// Books an entry.
///     #[tool]
///     async fn book(&self, mut tx: Tx<SqliteStore>, Parameters(entry): Parameters<Entry>) -> Result<String, ErrorData> {
///         sqlx::query("INSERT INTO entry (text) VALUES (?1)")
///             .bind(entry.text)
///             .execute(&mut *tx)
///             .await
///             .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
///         Ok("booked".into())
///     }
/// }
/// # }
/// ```
pub struct Tx<S: TransactionStore>(Borrowed<S>);

impl<S: TransactionStore> Tx<S> {
    pub(in crate::call) const fn of(borrowed: Borrowed<S>) -> Self {
        Self(borrowed)
    }

    /// The transaction of the call that this task runs, for tools without extractors.
    ///
    /// # Errors
    ///
    /// No transaction is open, or it was taken before. Nothing was changed.
    pub fn current() -> Result<Self, ErrorData> {
        Lent::current().map_or_else(|| Err(none_open()), |lent| borrow(&lent))
    }
}

impl<S: TransactionStore, C: AsRequestContext> FromContextPart<C> for Tx<S> {
    fn from_context_part(context: &mut C) -> Result<Self, ErrorData> {
        let extensions = &context.as_request_context().extensions;
        match extensions.get::<Lent<S>>() {
            Some(lent) => borrow(lent),
            // In lease mode the handler's body has not begun, so nothing is in doubt.
            None if extensions.get::<InLeaseMode>().is_some() => {
                Err(NotExecuted::mark(none_open()))
            }
            None => Err(none_open()),
        }
    }
}

impl<S: TransactionStore> Deref for Tx<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.0
    }
}

impl<S: TransactionStore> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.0
    }
}

impl<S: TransactionStore> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl AfterCommit {
    /// What is to be done after the commit of the call that this task runs, for services, and for tools
    /// without extractors.
    ///
    /// # Errors
    ///
    /// The task runs no call that has a transaction. Nothing was changed.
    pub fn current() -> Result<Self, ErrorData> {
        Self::of_this_task().ok_or_else(nothing_to_commit)
    }
}

impl<C: AsRequestContext> FromContextPart<C> for AfterCommit {
    fn from_context_part(context: &mut C) -> Result<Self, ErrorData> {
        let extensions = &context.as_request_context().extensions;
        match extensions.get::<Self>() {
            Some(after) => Ok(after.clone()),
            // In lease mode the handler's body has not begun, so nothing is in doubt.
            None if extensions.get::<InLeaseMode>().is_some() => {
                Err(NotExecuted::mark(nothing_to_commit()))
            }
            None => Err(nothing_to_commit()),
        }
    }
}

/// In a request's extensions: the call runs in lease mode, and has no transaction.
#[derive(Clone, Copy, Debug)]
pub(in crate::call) struct InLeaseMode;

pub(in crate::call) fn borrow<S: TransactionStore>(lent: &Lent<S>) -> Result<Tx<S>, ErrorData> {
    lent.borrow().map(Tx::of).map_err(|why| match why {
        NotLent::Ended => ended(),
        _ => taken_before(),
    })
}

/// Not marked as `NotExecuted`: a handler may ask for the transaction after it has acted elsewhere.
fn refused(message: &str) -> ErrorData {
    tracing::error!(message, "a handler could not get the transaction");
    let refusal = Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    );
    provenance::sealed(refusal::error_data(&refusal))
}

pub(crate) fn none_open() -> ErrorData {
    refused(
        "This tool takes the call's transaction (`Tx`), but none of this store is open for it. Its \
         author must wrap the server with `ServerExt::idempotent`, in a layer whose rule for this \
         tool is `Rule::transaction()` over the same store; in lease mode there is no transaction.",
    )
}

fn nothing_to_commit() -> ErrorData {
    refused(
        "This tool takes `AfterCommit`, but its call has no transaction that could be committed. Its \
         author must let it write through the call's transaction, or leave `AfterCommit` out: in \
         lease mode the effect is there when the handler returns.",
    )
}

fn taken_before() -> ErrorData {
    refused(
        "This tool takes the call's transaction (`Tx`) twice. There is one for each call; its \
         author must take it once and pass it on by `&mut`.",
    )
}

fn ended() -> ErrorData {
    refused(
        "The call that this transaction (`Tx`) belongs to has ended. Its author must take it before \
         the handler returns.",
    )
}
