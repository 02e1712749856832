//! What is left when a handler has returned, or was interrupted.

use mcp_idempotent_core::{
    Bytes, CommitOutcome, HandlerResult, Interrupted, Lent, Refusal, ResultKind, TransactionStore,
    engine::Closed,
};

use super::refusal;

/// Takes the transaction back after the handler has returned or was interrupted; `None` if something
/// still holds it.
pub(super) fn hand_back<S: TransactionStore, R: HandlerResult>(
    lent: &Lent<S>,
    ran: Result<R, Interrupted>,
    must_write: bool,
) -> (Option<S::Transaction>, Result<R, Refusal>) {
    let ran = ran.map_err(|why| refusal::interrupted(why, CommitOutcome::NotCommitted));
    match lent.close() {
        Closed::StillHeld => (None, ran),
        Closed::Returned(transaction) => (Some(transaction), ran),
        Closed::Untouched(transaction) => {
            let ran = ran.and_then(|result| {
                if must_write && result.kind().is_success() {
                    Err(refusal::not_borrowed())
                } else {
                    Ok(result)
                }
            });
            (Some(transaction), ran)
        }
    }
}

/// How the handler ended, for the engine. A call that was interrupted is rolled back or in doubt, and is
/// never recorded.
pub(super) struct Seen<'a, R>(pub(super) &'a Result<R, Refusal>);

impl<R: HandlerResult> HandlerResult for Seen<'_, R> {
    fn kind(&self) -> ResultKind {
        self.0
            .as_ref()
            .map_or(ResultKind::Interrupted, HandlerResult::kind)
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        match self.0 {
            Ok(result) => result.encode(),
            Err(_) => Err("the handler has no result".into()),
        }
    }
}
