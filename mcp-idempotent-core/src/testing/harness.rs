//! What the suite has to be told about a store.

use std::{error::Error, future::Future, time::Duration};

use crate::{
    fingerprint::RecordId,
    store::{Store, TransactionStore},
};

/// What a harness returns. An error fails the test.
pub type HarnessResult<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A store under test.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The store. Always return the same one.
    fn store(&self) -> &Self::Store;

    /// The same records as another process sees them, with its own pool, queue and cache. Override
    /// this unless only [one process](crate::store::Reach::Process) can see the store.
    fn elsewhere(&self) -> &Self::Store {
        self.store()
    }

    /// Makes a record older: moves all its times back by `by`, or the store's clock forward. The
    /// record may not exist.
    ///
    /// # Errors
    ///
    /// The record is as it was.
    fn age(&self, id: RecordId, by: Duration) -> impl Future<Output = HarnessResult> + Send;
}

/// A store with transactions under test, and effects that can be counted.
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

    /// Counts the committed rows, seen from outside any attempt's transaction.
    ///
    /// # Errors
    ///
    /// They could not be counted.
    fn effects(&self) -> impl Future<Output = HarnessResult<u64>> + Send;
}

/// A store on an SQL database under test. Its pool has **one connection**, so that the next user of
/// the pool meets anything that an attempt has left on it.
pub trait SqlHarness: TransactionHarness {
    /// Runs SQL such as `COMMIT`, `ROLLBACK` or `BEGIN` through the open transaction, several
    /// statements at once, like a handler that ignores errors.
    fn run<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
        sql: &'static str,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// Makes the database roll the open transaction back, or refuse its commit, with an error that
    /// the handler swallows.
    fn fail<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// Writes one row without a transaction, like the next user of the store's pool.
    ///
    /// # Errors
    ///
    /// The row was not written.
    fn write_through_the_pool(&self) -> impl Future<Output = HarnessResult> + Send;
}
