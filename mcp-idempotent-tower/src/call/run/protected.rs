//! What a run needs of an attempt. The attempts of protected calls are the engine's, and have it here; those of
//! other calls are in [`unprotected`](super::unprotected).

use std::future::Future;

use mcp_idempotent_core::{
    Answer, HandlerResult, Interrupted, LeaseAttempt, ResultKind, RotatedKey, Store,
    TransactionAttempt, TransactionStore, engine::Stop,
};

/// An attempt that has a transaction: the engine's, or that of an unprotected call.
pub(in crate::call) trait InTransaction<S: TransactionStore>:
    Send + 'static
{
    /// Tells the handler to stop.
    fn stop(&self) -> Stop;

    /// Whether a result of this kind commits what the handler wrote.
    fn commits(&self, kind: ResultKind) -> bool;

    /// Set if the handler runs although an equal call was made under another key.
    fn rotated_key(&self) -> Option<RotatedKey> {
        None
    }

    fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T, Interrupted>> + Send;

    /// Ends the transaction; `None` if something still holds it. Says what the caller is told.
    fn finish<R: HandlerResult + Sync>(
        self,
        transaction: Option<S::Transaction>,
        result: &R,
    ) -> impl Future<Output = Answer> + Send;
}

impl<S: TransactionStore> InTransaction<S> for TransactionAttempt<S> {
    fn stop(&self) -> Stop {
        Self::stop(self)
    }

    fn commits(&self, kind: ResultKind) -> bool {
        Self::commits(self, kind)
    }

    fn rotated_key(&self) -> Option<RotatedKey> {
        Self::rotated_key(self)
    }

    async fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> Result<T, Interrupted> {
        Self::run(self, handler).await
    }

    async fn finish<R: HandlerResult + Sync>(
        self,
        transaction: Option<S::Transaction>,
        result: &R,
    ) -> Answer {
        Self::finish(self, transaction, result).await
    }
}

/// An attempt in lease mode: the engine's, or that of an unprotected call.
pub(in crate::call) trait UnderLease: Send + 'static {
    /// Set if the handler runs although an equal call was made under another key.
    fn rotated_key(&self) -> Option<RotatedKey> {
        None
    }

    fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> impl Future<Output = Result<T, Interrupted>> + Send;

    /// Ends the attempt, and says what the caller is told.
    fn finish<R: HandlerResult + Sync>(self, result: &R) -> impl Future<Output = Answer> + Send;
}

impl<S: Store> UnderLease for LeaseAttempt<S> {
    fn rotated_key(&self) -> Option<RotatedKey> {
        Self::rotated_key(self)
    }

    async fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> Result<T, Interrupted> {
        Self::run(self, handler).await
    }

    async fn finish<R: HandlerResult + Sync>(self, result: &R) -> Answer {
        Self::finish(self, result).await
    }
}
