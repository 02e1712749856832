//! A handler: how it is started and told to stop, and what it leaves of its transaction.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{HandlerResult, Lent, ResultKind, TransactionStore, engine::Closed};
use tokio_util::sync::CancellationToken;

use super::{
    reply::{NoResult, Ran},
    unused::Unused,
};
use crate::call::refusal;

/// Starts a handler, which first clones the author's server.
pub(in crate::call) fn started<R>(
    start: impl FnOnce() -> BoxFuture<'static, R>,
) -> Ran<BoxFuture<'static, R>> {
    catch_unwind(AssertUnwindSafe(start)).map_err(|_| NoResult {
        kind: ResultKind::NotCalled,
        refusal: refusal::panicked_before(),
    })
}

/// Runs a handler, and fires its cancellation token when `told` says that it should stop.
pub(in crate::call) async fn until_told<F: Future>(
    told: impl Future<Output = ()>,
    token: CancellationToken,
    handler: F,
) -> F::Output {
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
