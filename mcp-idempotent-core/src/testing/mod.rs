//! The conformance suite. Every [`Store`](crate::Store) has to pass it, ours and yours.
//!
//! Write a [`Harness`], which tells the suite how to reach your store, and add one line. Every rule
//! of the [contract](crate::store#contract) then becomes a test of its own:
//!
//! ```
//! use std::time::Duration;
//! use mcp_idempotent_core::{
//!     MemoryStore, RecordId, store_conformance,
//!     testing::{Harness, HarnessResult},
//! };
//!
//! struct Memory(MemoryStore);
//!
//! impl Harness for Memory {
//!     type Store = MemoryStore;
//!
//!     fn store(&self) -> &MemoryStore {
//!         &self.0
//!     }
//!
//!     async fn age(&self, _id: RecordId, by: Duration) -> HarnessResult {
//!         // Its clock is tokio's, which is paused.
//!         tokio::time::advance(by).await;
//!         Ok(())
//!     }
//! }
//!
//! store_conformance!(async {
//!     tokio::time::pause();
//!     Memory(MemoryStore::new())
//! });
//! ```
//!
//! The lines need `tokio` with the features `macros` and `rt` as a dependency of your tests; this
//! harness also needs `test-util`.
//!
//! | What your store is | What you implement | The line |
//! | --- | --- | --- |
//! | a [`Store`](crate::Store) | [`Harness`] | [`store_conformance!`](crate::store_conformance) |
//! | an [`OperatorStore`](crate::OperatorStore) | [`Harness`] | [`operator_store_conformance!`](crate::operator_store_conformance) |
//! | a [`TransactionStore`](crate::TransactionStore) | [`TransactionHarness`] | [`transaction_store_conformance!`](crate::transaction_store_conformance) |
//! | one on an SQL database | [`SqlHarness`] | [`sql_store_conformance!`](crate::sql_store_conformance) |
//! | the last, and an `OperatorStore` | [`SqlHarness`] | [`sql_operator_store_conformance!`](crate::sql_operator_store_conformance) |
//!
//! Each line takes an expression, which is evaluated for each rule. It is a future of a harness
//! with an **empty** store that no other test writes to. To run a line twice, with different
//! settings of your store, put each into a module of its own. If all your stores share something
//! that is slow to start, `store_conformance!(name, cluster = start(), harness(&cluster))` makes
//! one test of all rules, and starts it once.
//!
//! A harness need not panic: it returns its errors, and they fail the test. The suite makes records
//! old with [`Harness::age`] and never sleeps for that. Its waits for other callers have a time
//! limit. A rule makes up to 32 calls at the same time.

#[expect(missing_docs, reason = "each function's name is its rule")]
mod attempt;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod dropped;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod guard;
mod harness;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod interference;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod lease;
pub mod model;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod operator;
mod polls;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod resolving;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod retention;
mod rules;
mod step;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod transaction;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod unsettled;
mod walk;

pub use self::harness::{Harness, HarnessResult, SqlHarness, TransactionHarness};
#[doc(hidden)]
pub use self::{
    attempt::*, dropped::*, guard::*, interference::*, lease::*, operator::*, resolving::*,
    retention::*, transaction::*, unsettled::*, walk::*,
};
