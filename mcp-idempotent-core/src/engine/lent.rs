//! An attempt whose transaction is in other hands while the handler runs.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;

use super::{
    Answer, Interrupted, TransactionAttempt, answer,
    attempt::{self, Context},
};
use crate::{outcome::ResultKind, policy::OnDoubt, store::TransactionStore};

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
    /// Runs the handler, in this task, for as long as the store lets a handler hold its
    /// transaction.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]; take the transaction back and finish the attempt with a result of kind
    /// [`ResultKind::Interrupted`](crate::ResultKind::Interrupted).
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Result<T, Interrupted> {
        let handler = AssertUnwindSafe(handler).catch_unwind();
        let limit = self.store.transaction_limit();
        attempt::run_for(limit, attempt::holding(&self.context, handler)).await
    }

    /// Takes the transaction back, to finish the attempt.
    #[must_use = "the attempt ends when it is dropped"]
    pub fn take_back(self, transaction: S::Transaction) -> TransactionAttempt<S> {
        TransactionAttempt::new(self.store, transaction, self.context)
    }

    /// The transaction did not come back: nothing is recorded, and the caller is told that the
    /// outcome is unknown.
    #[must_use = "it is the caller's answer"]
    pub fn give_up(mut self) -> Answer {
        let observed = self.context.handled(ResultKind::Interrupted);
        let refusal = observed
            .span()
            .in_scope(|| answer::still_held(OnDoubt::Fail));
        observed.refused(&refusal);
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
