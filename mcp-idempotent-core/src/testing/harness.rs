//! What the suite has to be told of a store.

use std::{error::Error, future::Future, time::Duration};

use crate::{
    fingerprint::RecordId,
    store::{Store, TransactionStore},
};

/// What a harness answers; an error fails the test that asked.
pub type HarnessResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A store under test.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The store; always the same one.
    fn store(&self) -> &Self::Store;

    /// The same records, as another process has them: with a pool, a queue and a cache of its own.
    /// Only a store that [one process](crate::store::Reach::Process) alone can see has none.
    fn elsewhere(&self) -> &Self::Store {
        self.store()
    }

    /// Makes a record older: moves all its times back by `by`, or the store's clock forward. There
    /// may be no such record.
    ///
    /// # Errors
    ///
    /// The record is as it was.
    fn age(&self, id: RecordId, by: Duration) -> impl Future<Output = HarnessResult> + Send;
}

/// A store with transactions under test, and an effect to count.
pub trait TransactionHarness: Harness<Store: TransactionStore> {
    /// Writes one row through the open transaction.
    ///
    /// # Errors
    ///
    /// The row was not written.
    fn write<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
    ) -> impl Future<Output = HarnessResult> + Send + 'c;

    /// How many rows are committed, seen from outside any attempt's transaction.
    ///
    /// # Errors
    ///
    /// They could not be counted.
    fn effects(&self) -> impl Future<Output = HarnessResult<u64>> + Send;
}

/// A store on an SQL database under test, whose pool has **one connection**, so that what an
/// attempt leaves on it meets the next user.
pub trait SqlHarness: TransactionHarness {
    /// Runs `COMMIT`, `ROLLBACK`, `BEGIN` and such, several statements at once, through the open
    /// transaction, as a handler does that does not look at errors.
    fn run<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
        sql: &'static str,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// Brings the database to roll the open transaction back, or to refuse its commit, by an error
    /// that the handler swallows.
    fn fail<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// Writes one row as the next user of the store's pool does: without a transaction.
    ///
    /// # Errors
    ///
    /// The row was not written.
    fn write_through_the_pool(&self) -> impl Future<Output = HarnessResult> + Send;
}
