//! The cell that lends a handler its transaction.

use std::{
    any::Any,
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    sync::{Arc, PoisonError},
};

use crate::{
    store::TransactionStore,
    sync::{Mutex, MutexGuard},
};

tokio::task_local! {
    /// The [`Lent`] of the call that this task runs, for a store of any type, or nothing.
    static CURRENT: Option<Arc<dyn Any + Send + Sync>>;
}

/// An open transaction that the handler of one call may borrow. Cheap to clone; clones share it.
///
/// The handler either [borrows](Self::borrow) it once, or [shares](Self::share) it between any
/// number of users that take turns.
pub struct Lent<S: TransactionStore>(Arc<Cell<S>>);

struct Cell<S: TransactionStore> {
    store: Arc<S>,
    place: Mutex<Place<S::Transaction>>,
}

enum Place<T> {
    Untouched(T),
    Borrowed,
    Shared(Arc<tokio::sync::Mutex<T>>),
    Returned(T),
    Closed,
}

/// Why there is no transaction to borrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLent {
    /// It has already been borrowed or shared. Each call has only one transaction, and may borrow it
    /// once.
    BorrowedBefore,
    /// The call has ended.
    Ended,
}

/// What a cell held when its handler had returned.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the caller of `close` must end each of them"
)]
pub enum Closed<T> {
    /// It was never borrowed.
    Untouched(T),
    /// It was borrowed and came back.
    Returned(T),
    /// Something that the handler started still holds it. It is rolled back once it is let go.
    StillHeld,
}

impl<S: TransactionStore> Lent<S> {
    /// Puts a transaction of `store` into a new cell.
    #[must_use]
    pub fn new(store: Arc<S>, transaction: S::Transaction) -> Self {
        Self(Arc::new(Cell {
            store,
            place: Mutex::new(Place::Untouched(transaction)),
        }))
    }

    /// The transaction of the call that this task runs. A task that a handler spawns runs no call.
    #[must_use]
    pub fn current() -> Option<Self> {
        let current = CURRENT.try_with(Clone::clone).ok().flatten()?;
        current.downcast().ok().map(Self)
    }

    /// Makes this the transaction of the task that runs `future`.
    pub fn during<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        let cell: Arc<dyn Any + Send + Sync> = self.0;
        CURRENT.scope(Some(cell), future)
    }

    /// The store that it belongs to.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Borrows the transaction.
    ///
    /// # Errors
    ///
    /// [`NotLent`]. Nothing was changed.
    pub fn borrow(&self) -> Result<Borrowed<S>, NotLent> {
        let mut place = lock(&self.0.place);
        match std::mem::replace(&mut *place, Place::Borrowed) {
            Place::Untouched(transaction) => Ok(Borrowed {
                transaction: Some(transaction),
                cell: self.clone(),
            }),
            other => {
                let why = match other {
                    Place::Closed => NotLent::Ended,
                    _ => NotLent::BorrowedBefore,
                };
                *place = other;
                Err(why)
            }
        }
    }

    /// Shares the transaction between users that take turns. Each use holds the lock.
    ///
    /// # Errors
    ///
    /// [`NotLent`]: it is lent already, or the call has ended. Nothing was changed.
    pub fn share(&self) -> Result<Arc<tokio::sync::Mutex<S::Transaction>>, NotLent> {
        let mut place = lock(&self.0.place);
        match std::mem::replace(&mut *place, Place::Closed) {
            Place::Untouched(transaction) | Place::Returned(transaction) => {
                let shared = Arc::new(tokio::sync::Mutex::new(transaction));
                *place = Place::Shared(Arc::clone(&shared));
                Ok(shared)
            }
            Place::Shared(shared) => {
                *place = Place::Shared(Arc::clone(&shared));
                Ok(shared)
            }
            Place::Borrowed => {
                *place = Place::Borrowed;
                Err(NotLent::BorrowedBefore)
            }
            Place::Closed => Err(NotLent::Ended),
        }
    }

    /// Takes the transaction back for good, after the handler has returned.
    pub fn close(&self) -> Closed<S::Transaction> {
        match std::mem::replace(&mut *lock(&self.0.place), Place::Closed) {
            Place::Untouched(transaction) => Closed::Untouched(transaction),
            Place::Returned(transaction) => Closed::Returned(transaction),
            Place::Shared(shared) => match Arc::try_unwrap(shared) {
                Ok(transaction) => Closed::Returned(transaction.into_inner()),
                Err(_) => Closed::StillHeld,
            },
            Place::Borrowed | Place::Closed => Closed::StillHeld,
        }
    }

    fn give_back(&self, transaction: S::Transaction) {
        let mut place = lock(&self.0.place);
        if matches!(*place, Place::Borrowed) {
            *place = Place::Returned(transaction);
        } else {
            // Dropping it rolls it back, which must not happen under the lock.
            drop(place);
            drop(transaction);
        }
    }
}

impl<S: TransactionStore> Clone for Lent<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: TransactionStore> fmt::Debug for Lent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").finish_non_exhaustive()
    }
}

/// A borrowed transaction. It derefs to the store's connection. It has no commit and no rollback,
/// and a nested `begin` is a savepoint. Dropping it gives it back.
pub struct Borrowed<S: TransactionStore> {
    /// `None` only while it is being dropped.
    transaction: Option<S::Transaction>,
    cell: Lent<S>,
}

impl<S: TransactionStore> Deref for Borrowed<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        match &self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a borrowed transaction is there until it is dropped"),
        }
    }
}

impl<S: TransactionStore> DerefMut for Borrowed<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a borrowed transaction is there until it is dropped"),
        }
    }
}

impl<S: TransactionStore> Drop for Borrowed<S> {
    fn drop(&mut self) {
        if let Some(transaction) = self.transaction.take() {
            self.cell.give_back(transaction);
        }
    }
}

impl<S: TransactionStore> fmt::Debug for Borrowed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrowed").finish_non_exhaustive()
    }
}

/// Runs a future outside the transaction of any call around it.
pub fn outside_any_transaction<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(None, future)
}

/// Whether this task runs a call that has a transaction.
#[must_use]
pub fn is_inside_transaction() -> bool {
    CURRENT.try_with(Option::is_some).unwrap_or(false)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
