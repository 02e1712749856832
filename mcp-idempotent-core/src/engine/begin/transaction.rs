//! Beginning a call in transaction mode.

use std::sync::Arc;

use tracing::Instrument as _;

use super::{Led, Rules};
use crate::{
    engine::{Begun, Engine, Request, TransactionAttempt},
    store::TransactionStore,
    telemetry::{Mode, Outcome},
};

impl<S: TransactionStore> Engine<S> {
    /// Begins a call in transaction mode: the attempt holds the open transaction.
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn begin_transaction(&self, request: Request<'_>) -> Begun<TransactionAttempt<S>> {
        let observed = request.observe(&self.inner.application, Mode::Transaction);
        let request = Request {
            observed: Some(&observed),
            ..request
        };
        let claimed = self
            .lead_or_answer(&request, Rules::OF_TRANSACTIONS, |claim, _| {
                let call = request.call.clone();
                async move { self.inner.store.begin(&call, claim.as_ref()).await }
            })
            .instrument(observed.span())
            .await;
        match claimed {
            Led::Answer(answer) => {
                observed.answered(&answer);
                Begun::Answer(answer)
            }
            Led::Unprotected => {
                observed.end(Outcome::FailedOpen);
                Begun::Unprotected
            }
            Led::Claimed { held, context } => Begun::Attempt(TransactionAttempt::new(
                Arc::clone(&self.inner.store),
                held,
                context.observed_by(observed),
            )),
        }
    }
}
