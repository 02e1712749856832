//! The conformance suite: every [`Store`] passes it, ours and yours.
//!
//! Implement [`Harness`] (and [`TransactionHarness`] for a store with transactions), then run the
//! suite with one line each; every rule of the [contract](crate::store#contract) becomes a test of
//! its own:
//!
//! ```
//! use std::time::Duration;
//! use mcp_idempotent_core::{MemoryStore, RecordId, store_conformance, testing::Harness};
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
//!     async fn age(&self, _id: RecordId, by: Duration) {
//!         // Its clock is tokio's.
//!         tokio::time::pause();
//!         tokio::time::advance(by).await;
//!     }
//! }
//!
//! store_conformance!(async { Memory(MemoryStore::new()) });
//! ```

#[expect(missing_docs, reason = "each function's name is its rule")]
mod attempt;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod lease;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod operator;
#[expect(missing_docs, reason = "each function's name is its rule")]
mod transaction;

use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    CanonicalArguments, Identity, RecordId, Scope, Store, TransactionStore,
    record::{Record, RecordState},
    scope::Application,
    store::{CallInfo, Claim, Claimed, Completion, Lease},
};

#[doc(hidden)]
pub use self::{attempt::*, lease::*, operator::*, transaction::*};

/// A store under test.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Store;

    /// The store; always the same one.
    fn store(&self) -> &Self::Store;

    /// Makes a record older: moves all its times back by `by`, or the store's clock forward.
    fn age(&self, id: RecordId, by: Duration) -> impl Future<Output = ()> + Send;
}

/// A store with transactions under test, and an effect to count.
pub trait TransactionHarness: Harness<Store: TransactionStore> {
    /// Writes one row through the open transaction.
    fn write<'c>(
        &'c self,
        connection: &'c mut <Self::Store as TransactionStore>::Connection,
    ) -> impl Future<Output = ()> + Send + 'c;

    /// How many rows are committed, seen from outside any attempt's transaction.
    fn effects(&self) -> impl Future<Output = u64> + Send;
}

/// Turns each rule into a `#[tokio::test]`. Takes a future that makes a [`Harness`] on an empty
/// store.
#[macro_export]
macro_rules! store_conformance {
    ($harness:expr) => {
        $crate::__conformance! { $harness =>
            one_of_many_concurrent_claims_wins
            a_claim_in_progress_is_reported_with_its_fingerprint
            a_result_is_returned_byte_for_byte
            a_result_that_was_too_large_leaves_a_completed_record
            a_released_key_is_free_and_its_token_is_not_reused
            a_completed_attempt_cannot_be_changed
            a_wrong_token_is_fenced
            an_abandoned_attempt_is_in_doubt
            a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew
            a_late_attempt_is_fenced
            an_expired_record_is_absent_before_it_is_swept
            racing_claims_of_an_expired_record_win_once
            an_expired_record_is_reported_where_that_is_asked_for
            a_sweep_removes_what_expired_and_nothing_else
            a_sweep_keeps_to_its_limit
            a_token_is_not_reused_after_a_sweep
            a_look_up_sees_the_record_and_claims_nothing
            an_inspection_tells_what_a_key_holds_and_claims_nothing
            two_keys_do_not_meet
            a_renewed_lease_lasts_longer
            a_lapsed_lease_is_not_revived
            a_call_in_doubt_can_be_taken_over_and_fences_who_had_it
            nothing_but_the_same_call_in_doubt_is_taken_over
            one_of_many_take_overs_wins
            a_record_in_doubt_is_kept_for_its_own_retention
            a_key_that_was_given_back_remembers_its_origin
            what_is_left_of_a_free_key_is_forgotten_unswept_too
            racing_claims_of_a_free_key_win_once
        }
    };
}

/// As [`store_conformance!`], for the rules of [`OperatorStore`](crate::OperatorStore).
#[macro_export]
macro_rules! operator_store_conformance {
    ($harness:expr) => {
        $crate::__conformance! { $harness =>
            an_operator_sees_where_each_record_stands
            a_listing_has_pages_and_filters
            a_call_resolved_as_committed_is_replayed
            a_call_resolved_as_committed_without_a_result_never_runs_again
            a_released_call_is_another_attempt_of_its_origin
            a_call_resolved_as_not_committed_begins_anew
            only_what_was_seen_is_resolved
            the_trail_of_a_free_key_is_swept_when_it_has_been_kept
        }
    };
}

/// As [`store_conformance!`], for the rules of [`TransactionStore`]. Takes a future that makes a
/// [`TransactionHarness`].
#[macro_export]
macro_rules! transaction_store_conformance {
    ($harness:expr) => {
        $crate::__conformance! { $harness =>
            a_commit_makes_effect_and_record_visible_together
            an_inspection_sees_a_running_transaction
            a_roll_back_leaves_neither_effect_nor_record
            a_dropped_transaction_leaves_neither_and_the_key_is_free
            an_error_is_recorded_without_its_effect
            an_unprotected_call_commits_without_a_record
            racing_transactions_have_one_effect
            racing_transactions_on_an_expired_record_have_one_effect_each_time
            a_lease_claim_does_not_pass_a_running_transaction
            a_transaction_does_not_pass_a_running_lease
            another_call_under_the_key_is_a_conflict_afterwards
            a_lease_is_completed_together_with_a_transaction
            a_fenced_lease_commits_nothing_of_its_transaction
            a_lapsed_lease_commits_nothing_of_its_transaction
            a_transaction_passes_what_is_left_of_a_free_key
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance {
    ($harness:expr => $($rule:ident)*) => {
        $(
            #[::tokio::test]
            async fn $rule() {
                $crate::testing::$rule(::std::sync::Arc::new($harness.await)).await;
            }
        )*
    };
}

/// A claim that no other test makes, with an hour of lease.
fn fresh_claim() -> Claim {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let key = format!("conformance-{}", COUNTER.fetch_add(1, Ordering::Relaxed));
    claim(&key, "{}")
}

fn claim(key: &str, arguments: &str) -> Claim {
    let scope = Scope::new("conformance");
    let key = crate::IdempotencyKey::new(key).expect("a valid key");
    let arguments: serde_json::Value = serde_json::from_str(arguments).expect("valid JSON");
    let identity = Identity::new(
        &Application::new("conformance"),
        &scope,
        Some(&key),
        "tool",
        &CanonicalArguments::new(arguments.as_object(), &[]),
        None,
    );
    let mut claim = Claim::new(
        identity.id,
        identity.fingerprint,
        CallInfo::new("tool", scope),
    );
    claim.key_prefix = identity.key_prefix;
    claim.lease = Duration::from_secs(3600);
    claim
}

/// The same key, asked for something else.
fn another_call(claim: &Claim) -> Claim {
    let mut other = claim.clone();
    other.fingerprint = fresh_claim().fingerprint;
    other
}

fn result(text: &'static str) -> Completion {
    Completion::new(
        Some(bytes::Bytes::from_static(text.as_bytes())),
        Duration::from_secs(60),
    )
}

async fn lease_of<S: Store>(store: &S, claim: &Claim) -> Lease {
    match store.claim(claim).await.expect("the store answers") {
        Claimed::New(lease) => lease,
        other => panic!("expected a new claim, found {other:?}"),
    }
}

async fn record_of<S: Store>(store: &S, claim: &Claim) -> Option<Record> {
    store.look_up(claim).await.expect("the store answers")
}

async fn state_of<S: Store>(store: &S, claim: &Claim) -> RecordState {
    record_of(store, claim).await.expect("a record").state
}
