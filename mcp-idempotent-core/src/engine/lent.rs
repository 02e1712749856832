//! An attempt whose transaction is in other hands while the handler runs.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;

use super::{
    Answer, HandlerPanicked, TransactionAttempt, answer,
    attempt::{self, Context},
};
use crate::store::TransactionStore;

/// A [`TransactionAttempt`] without its transaction, which somebody else hands to the handler and
/// takes back. Dropping it records nothing, and lets one of those who wait claim anew.
pub struct LentAttempt<S: TransactionStore> {
    store: Arc<S>,
    context: Context,
}

impl<S: TransactionStore> TransactionAttempt<S> {
    /// Gives the open transaction away, for handlers that cannot be given it by `&mut`. Whoever
    /// holds it neither commits it nor rolls it back; dropping it rolls back.
    #[must_use = "the attempt ends when it is dropped"]
    pub fn lend(self) -> (S::Transaction, LentAttempt<S>) {
        let Self {
            store,
            transaction,
            context,
        } = self;
        (transaction, LentAttempt { store, context })
    }
}

impl<S: TransactionStore> LentAttempt<S> {
    /// Runs the handler, in this task.
    ///
    /// # Errors
    ///
    /// [`HandlerPanicked`]; take the transaction back and finish the attempt with a result of kind
    /// [`ResultKind::Panicked`](crate::ResultKind::Panicked).
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, HandlerPanicked> {
        attempt::holding(self.context.id(), AssertUnwindSafe(handler).catch_unwind())
            .await
            .map_err(|_| HandlerPanicked)
    }

    /// Takes the transaction back, to finish the attempt.
    #[must_use = "the attempt ends when it is dropped"]
    pub fn take_back(self, transaction: S::Transaction) -> TransactionAttempt<S> {
        TransactionAttempt::new(self.store, transaction, self.context)
    }

    /// The transaction did not come back: nothing is recorded, and the caller is told that the
    /// outcome is unknown.
    #[must_use = "it is the caller's answer"]
    pub fn give_up(self) -> Answer {
        let refusal = answer::still_held();
        match self.context.protected {
            Some(protected) => protected.refuse(refusal),
            None => Answer::Refused(refusal),
        }
    }
}

impl<S: TransactionStore> std::fmt::Debug for LentAttempt<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LentAttempt")
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}
