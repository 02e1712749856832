//! A lease that is completed by the handler's own transaction.

use super::super::{
    PgTransaction, PostgresStore,
    end::finishing,
    statement::{self, Name},
    stopped::settle,
};
use crate::store::{Completion, Ended, Lease};

impl PostgresStore {
    /// The guarded completion goes with the commit, in its round trip. Its row lock is held until
    /// the commit is visible, so that whoever takes over waits for it.
    pub(in super::super) async fn complete_with(
        &self,
        mut transaction: PgTransaction,
        lease: &Lease,
        completion: &Completion,
    ) -> Ended {
        let complete = self.call(
            Name::CompleteHere,
            &[
                transaction.mark.literal(),
                statement::bytes(lease.id.as_bytes()),
                lease.token.to_string(),
                statement::bytes_or_null(completion.response.as_deref()),
                statement::interval(completion.retention).to_string(),
                statement::interval(completion.tombstone).to_string(),
            ],
        );
        let batch = format!("{complete}COMMIT AND CHAIN;");
        match finishing(&mut transaction, batch, 1).await {
            Ok(at) => {
                transaction.connection.release_chained();
                Ended::AsAsked(at)
            }
            Err(stopped) if stopped.may_have_committed() => {
                let mark = transaction.mark;
                drop(transaction);
                self.resolve_lease(lease, mark, stopped.into_error()).await
            }
            Err(stopped) if stopped.is_fenced() => {
                settle(transaction.connection, false).await;
                Ended::Fenced
            }
            Err(stopped) => self.stopped(transaction, None, stopped).await,
        }
    }
}
