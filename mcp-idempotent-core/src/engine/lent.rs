//! The cell from which a handler borrows its transaction, and gives it back.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::store::{CallInfo, Claimed, End, Ended, StoreError, TransactionStore};

/// An open transaction, for the handler of one call to borrow once. Cheap to clone; clones share it.
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
    /// It was borrowed before: there is one for each call.
    BorrowedBefore,
    /// The call has ended.
    Ended,
}

/// What a cell held when its handler had returned.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the one who closes must end each of them"
)]
pub enum Closed<T> {
    /// Nobody borrowed it.
    Untouched(T),
    /// It was borrowed and came back.
    Returned(T),
    /// Something that the handler started still holds it. It is rolled back when that lets go.
    StillHeld,
}

impl<S: TransactionStore> Lent<S> {
    /// Puts a transaction into a cell of its own.
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

    /// Takes the transaction back for good: the handler has returned.
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

/// The transaction in the handler's hand. It derefs to the store's connection, and has no commit and
/// no rollback; a nested `begin` is a savepoint. Dropping it gives it back.
pub struct Borrowed<S: TransactionStore> {
    /// Taken out by `drop` alone.
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

/// Why a handler could not have a transaction beside its outside call.
#[derive(Debug)]
#[non_exhaustive]
pub enum BeginError {
    /// The call's lease is of another store, or of one without transactions.
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

/// A transaction that a handler may begin in the middle of its call. Its store's type is known only
/// then.
#[derive(Default)]
pub struct LateTransaction {
    stage: Mutex<Stage>,
    /// By when a handler that holds it has to return.
    limit: Mutex<Option<Instant>>,
    limited: Notify,
}

#[derive(Default)]
enum Stage {
    #[default]
    Never,
    Beginning,
    Begun(Box<dyn Lending>),
    Closed,
}

/// What a handler that has returned left of its transaction.
#[expect(
    clippy::exhaustive_enums,
    reason = "the one who closes must end each of them"
)]
pub enum Left {
    /// It began none.
    Nothing,
    /// It is to be ended.
    Transaction(Box<dyn Ending>),
    /// Something that the handler started still holds it.
    StillHeld,
}

/// A transaction of any store, back from its handler.
pub trait Ending: Send {
    /// Ends it; see [`TransactionStore::end`].
    fn end(self: Box<Self>, end: End) -> BoxFuture<'static, Ended>;
}

/// A cell of any store.
trait Lending: Send {
    fn close(self: Box<Self>) -> Left;
}

impl LateTransaction {
    /// Opens it, in `store`.
    ///
    /// # Errors
    ///
    /// [`BeginError`]. After [`BeginError::Store`] it may be begun again.
    pub async fn begin<S: TransactionStore>(
        &self,
        store: &Arc<S>,
        call: &CallInfo,
    ) -> Result<Borrowed<S>, BeginError> {
        {
            let mut stage = lock(&self.stage);
            match *stage {
                Stage::Never => *stage = Stage::Beginning,
                Stage::Beginning | Stage::Begun(_) => return Err(BeginError::BegunBefore),
                Stage::Closed => return Err(BeginError::Ended),
            }
        }
        // Whatever happens before the handler has it: another try is as good as this one.
        let undo = Undo(&self.stage);
        let transaction = match store.begin(call, None).await {
            Ok(Claimed::New(transaction)) => transaction,
            Ok(_) => return Err(BeginError::AnotherStore),
            Err(error) => return Err(BeginError::Store(error)),
        };
        let lent = Lent::<S>::new(transaction);
        let borrowed = lent.borrow().map_err(|_| BeginError::Ended)?;
        let mut stage = lock(undo.0);
        if !matches!(*stage, Stage::Beginning) {
            return Err(BeginError::Ended);
        }
        *stage = Stage::Begun(Box::new(OfStore {
            store: Arc::clone(store),
            lent,
        }));
        drop(stage);
        if let Some(limit) = store.transaction_limit() {
            *lock(&self.limit) = Some(Instant::now() + limit);
            self.limited.notify_waiters();
        }
        Ok(borrowed)
    }

    /// Ends when the handler has held the transaction for longer than its store allows.
    pub async fn over_time(&self) {
        // Listening before looking: what changes in between is heard.
        let mut limited = std::pin::pin!(self.limited.notified());
        limited.as_mut().enable();
        let limit = *lock(&self.limit);
        let limit = match limit {
            Some(limit) => limit,
            None => {
                limited.await;
                let limit = *lock(&self.limit);
                limit.unwrap_or_else(Instant::now)
            }
        };
        sleep_until(limit).await;
    }

    /// Whether one was begun, and is not closed.
    pub(super) fn is_open(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Beginning | Stage::Begun(_))
    }

    /// The handler has returned: nothing can be begun any more.
    pub fn close(&self) -> Left {
        let stage = std::mem::replace(&mut *lock(&self.stage), Stage::Closed);
        match stage {
            Stage::Never | Stage::Closed => Left::Nothing,
            Stage::Beginning => Left::StillHeld,
            Stage::Begun(lending) => lending.close(),
        }
    }
}

impl fmt::Debug for LateTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateTransaction").finish_non_exhaustive()
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Transaction(_) => "Transaction",
            Self::StillHeld => "StillHeld",
        })
    }
}

/// A transaction that did not come about leaves room for another.
struct Undo<'a>(&'a Mutex<Stage>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let mut stage = lock(self.0);
        if matches!(*stage, Stage::Beginning) {
            *stage = Stage::Never;
        }
    }
}

struct OfStore<S: TransactionStore> {
    store: Arc<S>,
    lent: Lent<S>,
}

impl<S: TransactionStore> Lending for OfStore<S> {
    fn close(self: Box<Self>) -> Left {
        match self.lent.close() {
            Closed::StillHeld => Left::StillHeld,
            Closed::Untouched(transaction) | Closed::Returned(transaction) => {
                Left::Transaction(Box::new(Returned {
                    store: self.store,
                    transaction,
                }))
            }
        }
    }
}

struct Returned<S: TransactionStore> {
    store: Arc<S>,
    transaction: S::Transaction,
}

impl<S: TransactionStore> Ending for Returned<S> {
    fn end(self: Box<Self>, end: End) -> BoxFuture<'static, Ended> {
        Box::pin(async move { self.store.end(self.transaction, None, end).await })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No user code runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
