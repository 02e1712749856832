//! A transaction that a handler begins halfway through, after its outside call.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::lent::{Borrowed, Closed, Lent, lock};
use crate::store::{CallInfo, Claimed, End, Ended, StoreError, StoreErrorKind, TransactionStore};

/// Why a handler could not get a transaction in addition to its outside call.
#[derive(Debug)]
#[non_exhaustive]
pub enum BeginError {
    /// The call's lease belongs to another store, or to a store without transactions.
    AnotherStore,
    /// The attempt has already begun one. It has only one.
    BegunBefore,
    /// The attempt has ended, or its lease is lost.
    Ended,
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for BeginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AnotherStore => "the call's lease belongs to another store than the transaction",
            Self::BegunBefore => {
                "the call has already begun its transaction; there is one for each attempt"
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

/// A transaction that a handler may begin halfway through. The store's type is known only when it
/// begins.
#[derive(Default)]
pub struct LateTransaction {
    stage: Mutex<Stage>,
    /// The time by which the handler must have returned.
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

/// What a handler left of its transaction when it returned.
#[expect(
    clippy::exhaustive_enums,
    reason = "the caller of `close` must end each of them"
)]
pub enum Left {
    /// It began no transaction.
    Nothing,
    /// A transaction that must be ended.
    Transaction(Box<dyn Ending>),
    /// Something that the handler started still holds it.
    StillHeld,
}

/// A transaction that its handler has given back, for any type of store.
pub trait Ending: Send {
    /// Ends it; see [`TransactionStore::end`].
    fn end(self: Box<Self>, end: End) -> BoxFuture<'static, Ended>;
}

/// A [`Lent`] cell, for any type of store.
trait Lending: Send {
    fn close(self: Box<Self>) -> Left;
}

impl LateTransaction {
    /// Begins the transaction in `store`.
    ///
    /// # Errors
    ///
    /// [`BeginError`]. After [`BeginError::Store`] the handler may try again.
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
        // If anything fails before the handler has the transaction, it may begin again.
        let undo = Undo(&self.stage);
        let transaction = match store.begin(call, None).await {
            Ok(Claimed::New(transaction)) => transaction,
            Ok(_) => {
                return Err(BeginError::Store(StoreError::new(
                    StoreErrorKind::Other,
                    "the store answered a call without a claim with a record",
                )));
            }
            Err(error) => return Err(BeginError::Store(error)),
        };
        let lent = Lent::new(Arc::clone(store), transaction);
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

    /// Resolves when the handler has held the transaction for longer than its store allows.
    pub async fn over_time(&self) {
        // Listen before looking, so that no change in between is missed.
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

    /// Whether a transaction was begun and is not closed.
    pub(super) fn is_open(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Beginning | Stage::Begun(_))
    }

    /// Call this when the handler has returned. From then on no transaction can be begun.
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

/// Resets the stage if beginning fails, so that the handler may begin again.
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
