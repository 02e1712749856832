//! A lease that is completed by the handler's own transaction.

use super::super::{
    PgTransaction, PostgresStore,
    recovery::Sought,
    statement::{self, Name},
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
                statement::bytes(lease.id.as_bytes()),
                lease.token.to_string(),
                statement::bytes_or_null(completion.response.as_deref()),
                statement::interval(completion.retention).to_string(),
                statement::interval(completion.tombstone).to_string(),
            ],
        );
        let finished = self.finishing(&mut transaction, &complete).await;
        let sought = Sought::Completion(lease, transaction.mark);
        self.ended(transaction, None, sought, finished).await
    }
}
