//! A transaction inside a lease: for a handler that acts outside first, and writes then.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Held, LeaseHandle, lock};
use crate::store::{Claimed, Completion, End, Ended, Lease, StoreError, TransactionStore};

/// Why a handler could not have a transaction under its lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum BeginError {
    /// The lease is of another store, or of one without transactions.
    AnotherStore,
    /// It was begun before: there is one for each attempt.
    BegunBefore,
    /// The attempt has ended, or its lease is lost.
    Ended,
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AnotherStore => "the call's lease is of another store than the transaction",
            Self::BegunBefore => {
                "the call has begun its transaction before; there is one for each attempt"
            }
            Self::Ended => "the call has ended, or lost its lease",
            Self::Store(_) => "the store could not open a transaction",
        })
    }
}

impl std::error::Error for BeginError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

/// A transaction that commits together with the result of its attempt, if the attempt still has its
/// lease then; else it is rolled back. It derefs to the store's connection, and has no commit and no
/// rollback; a nested `begin` is a savepoint. Drop it, or let it go, before the handler returns.
///
/// Dropping it does not roll back: what was written until then commits when the handler returns a
/// result. A handler that gives its own writes up halfway (a timeout around them) returns an error,
/// or puts them into a savepoint.
pub struct LeaseTransaction<S: TransactionStore> {
    /// Taken out by `drop` alone.
    transaction: Option<S::Transaction>,
    store: Arc<S>,
    held: Arc<dyn Held>,
}

impl LeaseHandle {
    /// Opens the attempt's transaction: what is written through it, the result and the end of the
    /// lease commit together when the handler returns a result, or not at all. Begin it after the
    /// outside call, so that no connection is held while the other side takes its time.
    ///
    /// # Errors
    ///
    /// [`BeginError`]. The outside call may have been made: what the record says then is the
    /// policy's [`OnError`](crate::OnError).
    pub async fn begin<S: TransactionStore>(&self) -> Result<LeaseTransaction<S>, BeginError> {
        let watched = self.held.watched();
        let store = self
            .held
            .store()
            .downcast::<Arc<S>>()
            .map_err(|_| BeginError::AnotherStore)?;
        if watched.is_lost() {
            return Err(BeginError::Ended);
        }
        lock(&watched.transaction).begin()?;
        // Whatever happens before the handler has it: another try is as good as this one.
        let mut undo = Undo(Some(&self.held));
        match store.begin(&watched.call, None).await {
            Ok(Claimed::New(transaction)) => {
                undo.0 = None;
                if let Some(limit) = store.transaction_limit() {
                    watched.limit(Instant::now() + limit);
                }
                Ok(LeaseTransaction {
                    transaction: Some(transaction),
                    store: *store,
                    held: Arc::clone(&self.held),
                })
            }
            Ok(_) => Err(BeginError::AnotherStore),
            Err(error) => Err(BeginError::Store(error)),
        }
    }
}

struct Undo<'a>(Option<&'a Arc<dyn Held>>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.0 {
            lock(&held.watched().transaction).not_begun();
        }
    }
}

impl<S: TransactionStore> Deref for LeaseTransaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a guard holds its transaction until it is dropped"),
        }
    }
}

impl<S: TransactionStore> DerefMut for LeaseTransaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a guard holds its transaction until it is dropped"),
        }
    }
}

impl<S: TransactionStore> Drop for LeaseTransaction<S> {
    fn drop(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            let returned = Box::new(Returned {
                store: Arc::clone(&self.store),
                transaction,
            });
            // What the slot does not want is dropped, and so rolled back, without the lock.
            let unwanted = lock(&self.held.watched().transaction).give_back(returned);
            drop(unwanted);
        }
    }
}

impl<S: TransactionStore> fmt::Debug for LeaseTransaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseTransaction").finish_non_exhaustive()
    }
}

/// Where a handler's transaction is.
#[derive(Default)]
pub(in crate::engine) enum Open {
    #[default]
    Never,
    Taken,
    Returned(Box<dyn Ending>),
    Closed,
}

/// What a handler that has returned left of its transaction.
pub(in crate::engine) enum Left {
    Nothing,
    Transaction(Box<dyn Ending>),
    /// Something that the handler started has it still.
    StillHeld,
}

impl Open {
    pub(super) const fn is_open(&self) -> bool {
        matches!(self, Self::Taken | Self::Returned(_))
    }

    fn begin(&mut self) -> Result<(), BeginError> {
        match self {
            Self::Never => {
                *self = Self::Taken;
                Ok(())
            }
            Self::Taken | Self::Returned(_) => Err(BeginError::BegunBefore),
            Self::Closed => Err(BeginError::Ended),
        }
    }

    fn not_begun(&mut self) {
        if matches!(self, Self::Taken) {
            *self = Self::Never;
        }
    }

    fn give_back(&mut self, transaction: Box<dyn Ending>) -> Option<Box<dyn Ending>> {
        if matches!(self, Self::Taken) {
            *self = Self::Returned(transaction);
            None
        } else {
            Some(transaction)
        }
    }

    pub(super) fn close(&mut self) -> Left {
        match std::mem::replace(self, Self::Closed) {
            Self::Never | Self::Closed => Left::Nothing,
            Self::Taken => Left::StillHeld,
            Self::Returned(transaction) => Left::Transaction(transaction),
        }
    }
}

/// A transaction of any store, back from its handler.
pub(in crate::engine) trait Ending: Send {
    fn complete(self: Box<Self>, lease: Lease, completion: Completion)
    -> BoxFuture<'static, Ended>;

    /// For a call that nothing protects.
    fn commit(self: Box<Self>) -> BoxFuture<'static, Ended>;

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, Ended>;
}

struct Returned<S: TransactionStore> {
    store: Arc<S>,
    transaction: S::Transaction,
}

impl<S: TransactionStore> Returned<S> {
    fn end(self: Box<Self>, end: End) -> BoxFuture<'static, Ended> {
        Box::pin(async move {
            let Self { store, transaction } = *self;
            store.end(transaction, None, end).await
        })
    }
}

impl<S: TransactionStore> Ending for Returned<S> {
    fn complete(
        self: Box<Self>,
        lease: Lease,
        completion: Completion,
    ) -> BoxFuture<'static, Ended> {
        self.end(End::Complete(lease, completion))
    }

    fn commit(self: Box<Self>) -> BoxFuture<'static, Ended> {
        self.end(End::CommitUnrecorded)
    }

    fn roll_back(self: Box<Self>) -> BoxFuture<'static, Ended> {
        self.end(End::RollBack)
    }
}
