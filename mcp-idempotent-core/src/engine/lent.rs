//! The cell that lends a handler its transaction.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::store::TransactionStore;

/// An open transaction that the handler of one call may borrow once. Cheap to clone; clones share
/// it.
pub struct Lent<S: TransactionStore>(Arc<Mutex<Place<S::Transaction>>>);

enum Place<T> {
    Untouched(T),
    Borrowed,
    Returned(T),
    Closed,
}

/// Why there is no transaction to borrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLent {
    /// It has already been borrowed. Each call has only one transaction, and may borrow it once.
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
    /// Puts a transaction into a new cell.
    #[must_use]
    pub fn new(transaction: S::Transaction) -> Self {
        Self(Arc::new(Mutex::new(Place::Untouched(transaction))))
    }

    /// Borrows the transaction.
    ///
    /// # Errors
    ///
    /// [`NotLent`]. Nothing was changed.
    pub fn borrow(&self) -> Result<Borrowed<S>, NotLent> {
        let mut place = lock(&self.0);
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

    /// Takes the transaction back for good, after the handler has returned.
    pub fn close(&self) -> Closed<S::Transaction> {
        match std::mem::replace(&mut *lock(&self.0), Place::Closed) {
            Place::Untouched(transaction) => Closed::Untouched(transaction),
            Place::Returned(transaction) => Closed::Returned(transaction),
            Place::Borrowed | Place::Closed => Closed::StillHeld,
        }
    }

    fn give_back(&self, transaction: S::Transaction) {
        let mut place = lock(&self.0);
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
            None => unreachable!("a guard holds its transaction until it is dropped"),
        }
    }
}

impl<S: TransactionStore> DerefMut for Borrowed<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        match &mut self.transaction {
            Some(transaction) => transaction,
            None => unreachable!("a guard holds its transaction until it is dropped"),
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
