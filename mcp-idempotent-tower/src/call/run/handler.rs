//! A handler: how it is started and told to stop, under which attempt it runs, what it leaves, and what its
//! caller gets.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Answer, Bytes, CommitOutcome, HandlerResult, Interrupted, LeaseAttempt, Lent, OnDoubt,
    OnErrorResult, Refusal, Replay, ResultKind, RotatedKey, Store, TransactionAttempt,
    TransactionStore, answer,
    engine::{Closed, Stop},
    refusal::{session_ended, session_ended_after_acting},
};
use tokio_util::sync::CancellationToken;

use super::unused::Unused;
use crate::call::refusal;

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

/// Why a handler has no result.
pub(in crate::call) struct NoResult {
    pub(in crate::call) kind: ResultKind,
    pub(in crate::call) refusal: Refusal,
}

impl NoResult {
    /// In transaction mode: what the handler wrote is rolled back.
    pub(in crate::call) fn rolled_back(why: Interrupted) -> Self {
        Self {
            kind: ResultKind::Interrupted,
            refusal: match why {
                Interrupted::SessionEnded => session_ended(),
                why => refusal::interrupted(why, CommitOutcome::NotCommitted),
            },
        }
    }

    /// In lease mode: the handler may have acted outside.
    pub(in crate::call) fn after_acting(why: Interrupted, on_doubt: OnDoubt) -> Self {
        Self {
            kind: ResultKind::Interrupted,
            refusal: match why {
                Interrupted::SessionEnded => session_ended_after_acting(on_doubt),
                why => refusal::interrupted(why, CommitOutcome::Unknown),
            },
        }
    }
}

/// What a handler returned.
pub(in crate::call) type Ran<R> = Result<R, NoResult>;

/// Starts a handler, which first clones the author's server.
pub(in crate::call) fn started<R>(
    start: impl FnOnce() -> BoxFuture<'static, R>,
) -> Ran<BoxFuture<'static, R>> {
    catch_unwind(AssertUnwindSafe(start)).map_err(|_| NoResult {
        kind: ResultKind::NotCalled,
        refusal: refusal::panicked_before(),
    })
}

/// Runs a handler, and fires its cancellation token when it is told to stop.
pub(in crate::call) async fn until_told<F: Future>(
    stop: Stop,
    token: CancellationToken,
    handler: F,
) -> F::Output {
    let told = stop.told();
    tokio::pin!(handler, told);
    tokio::select! {
        biased;
        output = &mut handler => return output,
        () = told => token.cancel(),
    }
    handler.await
}

/// Takes the transaction back after the handler has returned or was interrupted; `None` if something
/// still holds it.
pub(in crate::call) fn hand_back<S: TransactionStore, R: HandlerResult>(
    lent: &Lent<S>,
    ran: Ran<R>,
    must_write: bool,
    unused: Option<&Unused>,
) -> (Option<S::Transaction>, Ran<R>) {
    match lent.close() {
        Closed::StillHeld => (None, ran),
        Closed::Returned(transaction) => (Some(transaction), ran),
        Closed::Untouched(transaction) => {
            if let (Some(unused), Ok(result)) = (unused, &ran)
                && result.kind().is_success()
            {
                unused.notice();
            }
            let ran = ran.and_then(|result| {
                if must_write && result.kind().is_success() {
                    Err(NoResult {
                        kind: ResultKind::Interrupted,
                        refusal: refusal::not_borrowed(),
                    })
                } else {
                    Ok(result)
                }
            });
            (Some(transaction), ran)
        }
    }
}

/// How the handler ended, for the engine. A call without a result is rolled back, in doubt or free, and is
/// never recorded.
pub(in crate::call) struct Seen<'a, R>(pub(in crate::call) &'a Ran<R>);

impl<R: HandlerResult> HandlerResult for Seen<'_, R> {
    fn kind(&self) -> ResultKind {
        match self.0 {
            Ok(result) => result.kind(),
            Err(none) => none.kind,
        }
    }

    fn on_error_result(&self) -> Option<OnErrorResult> {
        self.0.as_ref().ok()?.on_error_result()
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self.0 {
            Ok(result) => result.encode(),
            Err(_) => Err("the handler has no result".into()),
        }
    }
}

/// What a caller gets.
pub(crate) enum Reply<R> {
    /// The result of the handler, which ran for this caller, perhaps although an equal call was made under
    /// another key.
    Ran(R, Option<RotatedKey>),
    /// The same, but the result could not be recorded.
    Unrecorded(R),
    /// The error of the handler, which ran for this caller, and what it leaves behind: a call in doubt.
    LeftInDoubt(R, Refusal),
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    Refused(Refusal),
}

impl<R> Reply<R> {
    pub(in crate::call) fn of(answer: Answer, ran: Ran<R>, rotated: Option<RotatedKey>) -> Self {
        match (answer, ran) {
            (Answer::Executed, Ok(result)) => Self::Ran(result, rotated),
            (Answer::Unrecorded, Ok(result)) => Self::Unrecorded(result),
            (Answer::LeftInDoubt(refusal), Ok(result)) => Self::LeftInDoubt(result, refusal),
            (
                Answer::Executed | Answer::Unrecorded | Answer::LeftInDoubt(_),
                Err(NoResult { refusal, .. }),
            )
            | (Answer::Refused(refusal), _) => Self::Refused(refusal),
            (Answer::Replayed(replay), _) => Self::Replayed(replay),
        }
    }

    pub(in crate::call) fn without_running(answer: Answer) -> Self {
        match answer {
            Answer::Replayed(replay) => Self::Replayed(replay),
            Answer::Refused(refusal) => Self::Refused(refusal),
            Answer::Executed | Answer::Unrecorded | Answer::LeftInDoubt(_) => {
                Self::Refused(answer::unreadable())
            }
        }
    }
}

impl<R> From<Refusal> for Reply<R> {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}
