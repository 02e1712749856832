//! What the tasks of a process share, under every order in which they can run.
//!
//! `engine` compiles the files of the engine that tasks meet in once more. They take their locks and channels
//! from `crate::sync`, which is [`sync`] here: under the scheduler of shuttle, each use of one is a point at
//! which any other task may go on. `schedules` runs a test under all orders of these points, or under many.
//! A task that waits for ever fails the test, and shuttle prints what to replay.
//!
//! Orders of memory access that processors allow beyond these are not tried: what counts is under locks.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod engine;
mod schedules;
mod sync;

/// What the files of the engine import from the rest of the crate.
mod fingerprint {
    use std::collections::HashMap;

    pub(crate) use mcp_idempotent_core::fingerprint::{Fingerprint, RecordId};

    pub(crate) type RecordMap<V> = HashMap<RecordId, V>;
}

mod policy {
    pub(crate) use mcp_idempotent_core::Policy;
}

mod record {
    pub(crate) use mcp_idempotent_core::record::Record;
}

mod store {
    use std::{future::Future, ops::DerefMut, time::Duration};

    use futures_util::future::BoxFuture;
    pub(crate) use mcp_idempotent_core::store::{
        CallInfo, Claim, Claimed, End, Ended, StoreError, StoreErrorKind,
    };

    /// What these files need of a store that has transactions. The other promises of a store are tested
    /// elsewhere.
    #[expect(
        unreachable_pub,
        reason = "its types are named in what is public in the crate itself"
    )]
    pub trait TransactionStore: Send + Sync + 'static {
        type Connection: Send + 'static;
        type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

        fn transaction_limit(&self) -> Option<Duration>;

        fn session_over(&self, transaction: &Self::Transaction) -> Option<BoxFuture<'static, ()>>;

        fn begin(
            &self,
            call: &CallInfo,
            claim: Option<&Claim>,
        ) -> impl Future<Output = Result<Claimed<Self::Transaction>, StoreError>> + Send;

        fn end(
            &self,
            transaction: Self::Transaction,
            claim: Option<&Claim>,
            end: End,
        ) -> impl Future<Output = Ended> + Send;
    }
}

mod telemetry {
    pub(crate) use mcp_idempotent_core::telemetry::ObservedCall;
}
