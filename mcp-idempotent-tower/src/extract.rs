//! The open transaction, as an extractor.

use std::{
    any::Any,
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mcp_idempotent_core::{Action, CommitOutcome, ErrorKind, Refusal, TransactionStore};
use rmcp::{
    ErrorData,
    handler::server::common::{AsRequestContext, FromContextPart},
};

use crate::{Attempt, NotExecuted, provenance, wire};

tokio::task_local! {
    /// The slot of the call that this task runs.
    static CURRENT: Arc<dyn Any + Send + Sync>;
}

/// The open transaction of a tool call behind the [layer](crate::layer), for tools of a rule in
/// [transaction mode](crate::layer::Rule::transaction). It derefs to the store's connection.
///
/// 1. What is written through it commits together with the record when the handler returns a
///    result, or not at all. It has no commit and no rollback; a nested `begin` is a savepoint.
/// 2. It is taken once for each call. Taking it a second time is an error, and so is taking it
///    where none is open: behind no layer, under a rule in lease mode, from a layer over another
///    store, or after the call has ended.
/// 3. Dropping it gives it back. A task that still holds it when the handler returns makes the call
///    an error with an unknown outcome: nothing is committed, and what the task writes is rolled
///    back.
///
/// A handler takes it as a parameter; one that has no such place (an `AsyncTool`) takes it with
/// [`Tx::current`].
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
pub struct Tx<S: TransactionStore> {
    /// Taken out by `drop` alone.
    transaction: Option<S::Transaction>,
    slot: Slot<S>,
}

impl<S: TransactionStore> Tx<S> {
    /// The transaction of the call that this task runs, for tools that are given no context.
    ///
    /// # Errors
    ///
    /// As for the extractor: there is none, or it was taken before. Nothing was changed.
    pub fn current() -> Result<Self, ErrorData> {
        let slot = CURRENT
            .try_with(|current| Arc::clone(current).downcast::<Slot<S>>().ok())
            .ok()
            .flatten();
        match slot {
            Some(slot) => slot.take(),
            None => Err(none_open()),
        }
    }
}

impl<S: TransactionStore, C: AsRequestContext> FromContextPart<C> for Tx<S> {
    fn from_context_part(context: &mut C) -> Result<Self, ErrorData> {
        let extensions = &context.as_request_context().extensions;
        match extensions.get::<Slot<S>>() {
            Some(slot) => slot.take(),
            // In lease mode: the handler has not begun, so that nothing is in doubt.
            None if extensions.get::<Attempt>().is_some() => Err(NotExecuted::mark(none_open())),
            None => Err(none_open()),
        }
    }
}

impl<S: TransactionStore> Deref for Tx<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a guard holds its transaction until it is dropped"),
        }
    }
}

impl<S: TransactionStore> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a guard holds its transaction until it is dropped"),
        }
    }
}

impl<S: TransactionStore> Drop for Tx<S> {
    fn drop(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.slot.give_back(transaction);
        }
    }
}

impl<S: TransactionStore> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

/// Where the transaction lies while its call runs.
pub(crate) struct Slot<S: TransactionStore>(Arc<Mutex<State<S::Transaction>>>);

struct State<T> {
    transaction: Option<T>,
    taken: bool,
    closed: bool,
}

/// What a slot held when its handler had returned.
pub(crate) enum Closed<T> {
    /// The transaction, and whether the handler had it.
    Returned { transaction: T, taken: bool },
    /// Something that the handler started has it still.
    StillHeld,
}

impl<S: TransactionStore> Slot<S> {
    pub(crate) fn open(transaction: S::Transaction) -> Self {
        Self(Arc::new(Mutex::new(State {
            transaction: Some(transaction),
            taken: false,
            closed: false,
        })))
    }

    /// Makes it the slot of the task that runs `future`.
    pub(crate) async fn during<F: Future>(&self, future: F) -> F::Output {
        CURRENT.scope(Arc::new(self.clone()), future).await
    }

    fn take(&self) -> Result<Tx<S>, ErrorData> {
        let mut state = self.lock();
        if state.closed {
            return Err(ended());
        }
        if state.taken {
            return Err(taken_before());
        }
        state.taken = true;
        let transaction = state.transaction.take();
        drop(state);
        Ok(Tx {
            transaction,
            slot: self.clone(),
        })
    }

    fn give_back(&self, transaction: S::Transaction) {
        let mut state = self.lock();
        if state.closed {
            // Dropped, and so rolled back, without the lock.
            drop(state);
            drop(transaction);
        } else {
            state.transaction = Some(transaction);
        }
    }

    /// The handler has returned: nobody can take the transaction any more.
    pub(crate) fn close(&self) -> Closed<S::Transaction> {
        let mut state = self.lock();
        state.closed = true;
        match state.transaction.take() {
            Some(transaction) => Closed::Returned {
                transaction,
                taken: state.taken,
            },
            None => Closed::StillHeld,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<S::Transaction>> {
        // No user code runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: TransactionStore> Clone for Slot<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Not marked as `NotExecuted`: a handler may take the transaction after it has acted elsewhere.
fn refused(message: &str) -> ErrorData {
    tracing::error!(message, "a handler could not have the transaction");
    let refusal = Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    );
    provenance::sealed(wire::error_data(&refusal))
}

fn none_open() -> ErrorData {
    refused(
        "This tool takes the call's transaction (`Tx`), but none of this store is open for it. Its \
         author must wrap the server with `ServerExt::idempotent`, in a layer whose rule for this \
         tool is `Rule::transaction()` over the same store; in lease mode there is no transaction.",
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
