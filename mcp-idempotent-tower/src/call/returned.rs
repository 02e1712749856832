//! What is left when a handler has returned, or was interrupted.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Bytes, CommitOutcome, HandlerResult, Interrupted, Lent, OnDoubt, OnErrorResult, Refusal,
    ResultKind, TransactionStore,
    engine::Closed,
    refusal::{session_ended, session_ended_after_acting},
};

use super::refusal;

/// Why a handler has no result.
pub(super) struct NoResult {
    pub(super) kind: ResultKind,
    pub(super) refusal: Refusal,
}

impl NoResult {
    /// In transaction mode: what the handler wrote is rolled back.
    pub(super) fn rolled_back(why: Interrupted) -> Self {
        Self {
            kind: ResultKind::Interrupted,
            refusal: match why {
                Interrupted::SessionEnded => session_ended(),
                why => refusal::interrupted(why, CommitOutcome::NotCommitted),
            },
        }
    }

    /// In lease mode: the handler may have acted outside.
    pub(super) fn after_acting(why: Interrupted, on_doubt: OnDoubt) -> Self {
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
pub(super) type Ran<R> = Result<R, NoResult>;

/// Starts a handler, which first clones the author's server.
pub(super) fn started<R>(
    start: impl FnOnce() -> BoxFuture<'static, R>,
) -> Ran<BoxFuture<'static, R>> {
    catch_unwind(AssertUnwindSafe(start)).map_err(|_| NoResult {
        kind: ResultKind::NotCalled,
        refusal: refusal::panicked_before(),
    })
}

/// Takes the transaction back after the handler has returned or was interrupted; `None` if something
/// still holds it.
pub(super) fn hand_back<S: TransactionStore, R: HandlerResult>(
    lent: &Lent<S>,
    ran: Ran<R>,
    must_write: bool,
) -> (Option<S::Transaction>, Ran<R>) {
    match lent.close() {
        Closed::StillHeld => (None, ran),
        Closed::Returned(transaction) => (Some(transaction), ran),
        Closed::Untouched(transaction) => {
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
pub(super) struct Seen<'a, R>(pub(super) &'a Ran<R>);

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
