//! A transaction that a handler begins halfway through, after its outside call.

use std::{fmt, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{
    handler::{Interrupted, StopSignal, TimeLimit},
    lent::{Borrowed, Closed, Lent, lock},
};
use crate::{
    store::{CallInfo, Claimed, End, Ended, StoreError, StoreErrorKind, TransactionStore},
    sync::{Mutex, Notify},
};

/// Why a handler could not get a transaction in addition to its outside call.
#[derive(Debug)]
#[non_exhaustive]
pub enum BeginError {
    /// The call's lease belongs to another store, or to a store without transactions.
    AnotherStore,
    /// The attempt has already begun one. It has only one.
    BegunBefore,
    /// The attempt has asked for the statement that completes it in a transaction of another driver.
    CompletedElsewhere,
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
            Self::CompletedElsewhere => {
                "the call has asked for its completion statement, so a transaction of another driver completes it"
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

/// Why a handler could not get the statement that completes its attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompletionError {
    /// The store has no such statement.
    NotSupported,
    /// The attempt has begun a transaction of the store's, which completes it.
    TransactionBegun,
    /// The attempt has ended, or its lease is lost.
    Ended,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSupported => "the call's store has no completion for other drivers",
            Self::TransactionBegun => {
                "the call has begun a transaction of its store, which completes it"
            }
            Self::Ended => "the call has ended, or lost its lease",
        })
    }
}

impl std::error::Error for CompletionError {}

/// A transaction that a handler may begin halfway through. The store's type is known only when it
/// begins.
#[derive(Default)]
pub struct LateTransaction {
    stage: Mutex<Stage>,
    /// What ends the handler's time, until [`over`](Self::over) takes it.
    bounds: Mutex<Option<Bounds>>,
    bounded: Notify,
    stop: StopSignal,
}

/// What ends the time of a handler that has begun its transaction.
struct Bounds {
    begun: Instant,
    limit: TimeLimit,
    session_over: Option<BoxFuture<'static, ()>>,
}

#[derive(Default)]
enum Stage {
    #[default]
    Never,
    Beginning,
    Begun(Box<dyn Lending>),
    /// The handler completes its attempt in a transaction of another driver.
    Elsewhere,
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
    /// It asked for its completion, and may have committed it in a transaction of another driver.
    Elsewhere,
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
                Stage::Elsewhere => return Err(BeginError::CompletedElsewhere),
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
                    "the store returned a record although nothing was claimed",
                )));
            }
            Err(error) => return Err(BeginError::Store(error)),
        };
        let bounds = Bounds {
            begun: Instant::now(),
            limit: TimeLimit::of_store(store.transaction_limit()),
            session_over: store.session_over(&transaction),
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
        *lock(&self.bounds) = Some(bounds);
        self.bounded.notify_waiters();
        Ok(borrowed)
    }

    /// Resolves when the handler must be dropped, because it has held the transaction for longer than
    /// its store allows, or because the transaction's session has ended. Before that the handler is
    /// [told to stop](Self::told_to_stop).
    pub async fn over(&self) -> Interrupted {
        let Bounds {
            begun,
            limit,
            session_over,
        } = self.bounds().await;
        limit.over_since(begun, &self.stop, session_over).await
    }

    async fn bounds(&self) -> Bounds {
        loop {
            // Listen before looking, so that no change in between is missed.
            let mut bounded = std::pin::pin!(self.bounded.notified());
            bounded.as_mut().enable();
            if let Some(bounds) = lock(&self.bounds).take() {
                return bounds;
            }
            bounded.await;
        }
    }

    /// Resolves when the handler should stop, because what it writes can no longer be committed or its
    /// time is nearly over. It is watched by [`over`](Self::over).
    pub async fn told_to_stop(&self) {
        self.stop.told().await;
    }

    /// From now on the attempt is completed in a transaction of another driver. It may be said again.
    ///
    /// # Errors
    ///
    /// [`CompletionError`]. Nothing was changed.
    pub fn complete_elsewhere(&self) -> Result<(), CompletionError> {
        let mut stage = lock(&self.stage);
        match *stage {
            Stage::Never | Stage::Elsewhere => *stage = Stage::Elsewhere,
            Stage::Beginning | Stage::Begun(_) => return Err(CompletionError::TransactionBegun),
            Stage::Closed => return Err(CompletionError::Ended),
        }
        Ok(())
    }

    /// Whether a transaction was begun and is not closed.
    pub(super) fn is_open(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Beginning | Stage::Begun(_))
    }

    /// Whether a transaction of another driver may complete the attempt.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(*lock(&self.stage), Stage::Elsewhere)
    }

    /// Call this when the handler has returned. From then on no transaction can be begun.
    pub fn close(&self) -> Left {
        let stage = std::mem::replace(&mut *lock(&self.stage), Stage::Closed);
        match stage {
            Stage::Never | Stage::Closed => Left::Nothing,
            Stage::Beginning => Left::StillHeld,
            Stage::Elsewhere => Left::Elsewhere,
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
            Self::Elsewhere => "Elsewhere",
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
