//! Unprotected calls: calls without a key where the tool does not need one, and calls that run while the
//! store is unavailable because the policy allows it. They do not go through the engine: the attempts here
//! take the place of the engine's in `run`.

use std::{any::Any, future::Future, sync::Arc};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Answer, BeginError, Borrowed, CallInfo, CompletionError, CompletionStatement, DownstreamKey,
    HandlerResult, Interrupted, OnDoubt, Policy, Refusal, ResultKind, Store, StoreError,
    TransactionStore,
    engine::{LateTransaction, Left, Stop, TimeLimit, bounded, commits},
    fingerprint::DownstreamSeed,
    refusal,
    store::{Claimed, End, StoreErrorKind},
    telemetry::{ObservedCall, Outcome},
};
use tracing::{Instrument as _, Span};

use super::{
    protected::{InTransaction, UnderLease},
    rules::Rules,
};
use crate::call::identity::Unprotected;

/// Transaction mode: the handler's writes are committed or rolled back, and nothing is recorded.
pub(in crate::call) struct UnprotectedTransaction<S> {
    store: Arc<S>,
    policy: Arc<Policy>,
    observed: ObservedCall,
    stop: Stop,
    session_over: Option<BoxFuture<'static, ()>>,
}

impl<S: TransactionStore> UnprotectedTransaction<S> {
    /// # Errors
    ///
    /// The store is unavailable. Nothing was changed.
    pub(in crate::call) async fn begin(
        rules: &Rules<'_, S>,
        (info, observed): Unprotected,
    ) -> Result<(S::Transaction, Self), Refusal> {
        let store = Arc::clone(rules.idempotency.engine.store());
        let span = observed.span();
        let transaction = match store.begin(&info, None).instrument(span.clone()).await {
            Ok(Claimed::New(transaction)) => transaction,
            other => {
                let error = other.err().unwrap_or_else(|| {
                    StoreError::new(
                        StoreErrorKind::Other,
                        "the store returned a record although nothing was claimed",
                    )
                });
                let refusal = span.in_scope(|| refusal::store_unavailable(error));
                observed.refused(&refusal);
                return Err(refusal);
            }
        };
        let attempt = Self {
            session_over: store.session_over(&transaction),
            store,
            policy: Arc::clone(&rules.policy),
            observed,
            stop: Stop::default(),
        };
        Ok((transaction, attempt))
    }
}

impl<S: TransactionStore> InTransaction<S> for UnprotectedTransaction<S> {
    fn stop(&self) -> Stop {
        self.stop.clone()
    }

    fn commits(&self, kind: ResultKind) -> bool {
        commits(&self.policy, kind)
    }

    async fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> Result<T, Interrupted> {
        let _timed = self.observed.handler();
        let limit = TimeLimit::new(&self.policy, self.store.transaction_limit());
        let session_over = self.session_over.take();
        bounded(limit.over(&self.stop, session_over), handler)
            .instrument(self.observed.span())
            .await
    }

    async fn finish<R: HandlerResult + Sync>(
        self,
        transaction: Option<S::Transaction>,
        result: &R,
    ) -> Answer {
        let commits = self.commits(result.kind());
        let span = self.observed.span();
        let refusal = match transaction {
            None => Some(span.in_scope(|| refusal::still_held(OnDoubt::Fail))),
            Some(transaction) => {
                let end = unrecorded(commits);
                let ended = self.store.end(transaction, None, end);
                let ended = ended.instrument(span.clone()).await;
                span.in_scope(|| refusal::of_unrecorded(ended, commits, false))
            }
        };
        answered(Some(self.observed), refusal)
    }
}

/// Lease mode without a lease. When it is dropped, so is the handler; a clone of the handler's attempt that
/// outlives it cannot begin a transaction.
pub(in crate::call) struct UnleasedAttempt {
    unleased: ClosedOnDrop,
    observed: Option<ObservedCall>,
}

impl UnleasedAttempt {
    pub(in crate::call) fn new<S: Store>(
        store: &Arc<S>,
        info: CallInfo,
        observed: Option<ObservedCall>,
    ) -> Self {
        Self {
            unleased: ClosedOnDrop(Unleased::new(store, info)),
            observed,
        }
    }

    /// What the handler has instead of a lease.
    pub(in crate::call) fn handle(&self) -> Arc<Unleased> {
        Arc::clone(&self.unleased.0)
    }

    fn span(&self) -> Span {
        self.observed
            .as_ref()
            .map_or_else(Span::none, ObservedCall::span)
    }
}

impl UnderLease for UnleasedAttempt {
    async fn run<T: Send>(
        &mut self,
        handler: impl Future<Output = T> + Send,
    ) -> Result<T, Interrupted> {
        let _timed = self.observed.as_ref().and_then(ObservedCall::handler);
        bounded(self.unleased.0.over(), handler)
            .instrument(self.span())
            .await
    }

    async fn finish<R: HandlerResult + Sync>(self, result: &R) -> Answer {
        let ended = self.unleased.0.end(result.kind());
        let refusal = ended.instrument(self.span()).await;
        answered(self.observed, refusal)
    }
}

const fn unrecorded(commits: bool) -> End {
    if commits {
        End::CommitUnrecorded
    } else {
        End::RollBack
    }
}

fn answered(observed: Option<ObservedCall>, refusal: Option<Refusal>) -> Answer {
    if let Some(observed) = observed {
        match &refusal {
            Some(refusal) => observed.refused(refusal),
            None => observed.end(Outcome::Bypassed),
        }
    }
    refusal.map_or(Answer::Executed, Answer::Refused)
}

/// Stands in for a lease in the attempt of an unprotected call.
pub(in crate::call) struct Unleased {
    seed: DownstreamSeed,
    store: Arc<dyn Any + Send + Sync>,
    call: CallInfo,
    transaction: LateTransaction,
    /// What a handler runs instead of a completion, if the store has one.
    no_completion: Option<CompletionStatement>,
}

/// Nothing can be begun under it once this is dropped.
struct ClosedOnDrop(Arc<Unleased>);

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        drop(self.0.transaction.close());
    }
}

impl Unleased {
    fn new<S: Store>(store: &Arc<S>, call: CallInfo) -> Arc<Self> {
        Arc::new(Self {
            seed: DownstreamSeed::unique(),
            store: Arc::<S>::clone(store),
            call,
            transaction: LateTransaction::default(),
            no_completion: store
                .foreign_transactions()
                .map(|foreign| foreign.no_completion()),
        })
    }

    /// Resolves when the handler must be dropped; see [`LateTransaction::over`].
    async fn over(&self) -> Interrupted {
        self.transaction.over().await
    }

    /// Resolves when the handler should stop.
    pub(in crate::call) async fn told_to_stop(&self) {
        self.transaction.told_to_stop().await;
    }

    /// Different for every call.
    pub(in crate::call) fn downstream_key(&self, step: &str) -> DownstreamKey {
        self.seed.key(step)
    }

    pub(in crate::call) async fn begin<S: TransactionStore>(
        &self,
    ) -> Result<Borrowed<S>, BeginError> {
        let store = Arc::clone(&self.store)
            .downcast::<S>()
            .map_err(|_| BeginError::AnotherStore)?;
        self.transaction.begin(&store, &self.call).await
    }

    /// A statement that changes nothing.
    pub(in crate::call) fn completion(&self) -> Result<CompletionStatement, CompletionError> {
        let nothing = self.no_completion.clone();
        let nothing = nothing.ok_or(CompletionError::NotSupported)?;
        self.transaction.complete_elsewhere()?;
        Ok(nothing)
    }

    /// Ends the handler's transaction: it commits if the handler succeeded.
    async fn end(&self, kind: ResultKind) -> Option<Refusal> {
        match self.transaction.close() {
            // A handler that completes nothing decides alone what is committed.
            Left::Nothing | Left::Elsewhere => None,
            Left::StillHeld => Some(refusal::still_held(OnDoubt::Fail)),
            Left::Transaction(transaction) => {
                let commits = kind.is_success();
                let ended = transaction.end(unrecorded(commits)).await;
                refusal::of_unrecorded(ended, commits, true)
            }
        }
    }
}
