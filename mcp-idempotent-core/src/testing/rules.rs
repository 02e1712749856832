//! The macros that turn rules into tests.

/// Turns each rule for a [`Store`](crate::Store) into a `#[tokio::test]`. Takes a future that makes
/// a [`Harness`](crate::testing::Harness) with an empty store.
#[macro_export]
macro_rules! store_conformance {
    ($($how:tt)*) => {
        $crate::__conformance! { ($($how)*)
            one_of_many_concurrent_claims_wins
            a_claim_is_seen_by_everybody_with_its_fingerprint
            a_result_is_returned_byte_for_byte
            a_result_that_was_too_large_leaves_a_completed_record
            a_released_key_is_free_and_its_token_is_not_reused
            a_completed_attempt_cannot_be_changed
            a_wrong_token_is_fenced
            an_abandoned_attempt_is_in_doubt
            a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew
            an_expired_record_is_absent_before_it_is_swept
            racing_claims_of_an_expired_record_win_once
            an_expired_record_is_reported_where_that_is_asked_for
            a_sweep_removes_what_expired_and_nothing_else
            a_sweep_keeps_to_its_limit
            tokens_grow_whatever_is_left_of_their_records
            a_look_up_sees_the_record_and_claims_nothing
            an_inspection_tells_what_a_key_holds_and_claims_nothing
            two_keys_do_not_meet
            a_renewed_lease_lasts_longer
            a_running_lease_is_not_swept
            a_lapsed_lease_is_not_revived
            a_call_in_doubt_can_be_taken_over_and_fences_who_had_it
            nothing_but_the_same_call_in_doubt_is_taken_over
            one_of_many_take_overs_wins
            a_record_in_doubt_is_kept_for_its_own_retention
            a_key_that_was_given_back_remembers_its_origin
            what_is_left_of_a_free_key_is_forgotten_unswept_too
            racing_claims_of_a_free_key_win_once
            a_lease_and_its_guard_are_completed_together
            a_lost_guard_lets_its_lease_complete_nothing
            a_lost_lease_leaves_its_guard_as_it_was
            a_lease_and_its_guard_are_each_kept_for_their_own_time
            a_claim_that_keeps_no_doubt_is_free_when_its_lease_ends
            an_old_call_is_noticed_until_it_is_settled
            an_old_call_that_lapsed_is_noticed_as_long_as_it_is_kept
            what_is_free_or_no_call_is_not_noticed
            every_sequence_of_operations_is_answered_as_the_model_says
        }
    };
}

/// Like [`store_conformance!`], with the rules for an [`OperatorStore`](crate::OperatorStore).
#[macro_export]
macro_rules! operator_store_conformance {
    ($($how:tt)*) => {
        $crate::__conformance! { ($($how)*)
            an_operator_sees_where_each_record_stands
            a_listing_has_pages_and_filters
            a_record_is_known_by_its_key
            a_call_resolved_as_committed_is_replayed
            a_call_resolved_as_committed_without_a_result_never_runs_again
            a_released_call_is_another_attempt_of_its_origin
            a_call_resolved_as_not_committed_begins_anew
            only_what_was_seen_is_resolved
            who_and_why_and_the_tool_may_be_any_text
            the_trail_of_a_free_key_is_swept_when_it_has_been_kept
            every_sequence_with_an_operator_is_answered_as_the_model_says
        }
    };
}

/// Like [`store_conformance!`], with the rules for a [`TransactionStore`](crate::TransactionStore).
/// Takes a future that makes a [`TransactionHarness`](crate::testing::TransactionHarness).
#[macro_export]
macro_rules! transaction_store_conformance {
    ($($how:tt)*) => {
        $crate::__conformance! { ($($how)*)
            a_commit_makes_effect_and_record_visible_together
            a_committed_result_is_returned_byte_for_byte
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
            a_completed_lease_is_replayed_to_a_transaction
            a_lease_is_completed_together_with_a_transaction
            a_fenced_lease_commits_nothing_of_its_transaction
            a_lapsed_lease_commits_nothing_of_its_transaction
            an_attempt_that_was_taken_over_commits_nothing_of_its_transaction
            a_record_and_its_guard_are_committed_together
            a_record_and_its_guard_are_each_kept_for_their_own_time
            a_lost_guard_commits_nothing_of_its_transaction
            a_lease_and_its_guard_are_completed_together_with_a_transaction
            a_transaction_passes_what_is_left_of_a_free_key
            a_committed_record_counts_until_its_retention_ends_and_not_after
            whatever_ends_on_an_expired_record_replaces_it
            an_expired_key_is_refused_while_its_tombstone_is_kept_swept_or_not
            a_tombstone_does_not_stop_a_call_that_takes_expired_for_new
            a_record_without_a_tombstone_is_gone_at_its_expiry
            a_retention_without_end_does_not_overflow
        }
    };
}

/// Like [`store_conformance!`], with the rules about what a handler can do to a transaction on an
/// SQL database, and about dropped futures. Takes a future that makes a
/// [`SqlHarness`](crate::testing::SqlHarness).
#[macro_export]
macro_rules! sql_store_conformance {
    ($($how:tt)*) => {
        $crate::__conformance! { ($($how)*)
            a_handler_that_ends_its_transaction_leaves_the_key_in_doubt
            an_unprotected_handler_that_ends_its_transaction_is_noticed
            a_handler_that_ends_the_transaction_of_its_lease_completes_nothing
            a_transaction_that_failed_is_never_a_success
            a_begin_dropped_at_any_point_leaves_nothing_open
            a_replay_dropped_at_any_point_leaves_nothing_open
            an_end_dropped_at_any_point_leaves_both_or_neither
            a_completion_dropped_at_any_point_leaves_both_or_neither
            a_lease_method_dropped_at_any_point_leaves_nothing_open
            a_dropped_transaction_leaves_the_next_user_alone
        }
    };
}

/// Like [`sql_store_conformance!`], with the rules about what an
/// [`OperatorStore`](crate::OperatorStore) shows of calls in transaction mode.
#[macro_export]
macro_rules! sql_operator_store_conformance {
    ($($how:tt)*) => {
        $crate::__conformance! { ($($how)*)
            what_is_left_of_a_free_key_is_forgotten_by_a_transaction_once_it_was_kept
            a_call_left_in_doubt_by_its_handler_has_a_token_to_be_resolved_by
            a_resolution_fences_the_transaction_of_a_living_attempt
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance {
    (($name:ident, $shared:ident = $start:expr, $harness:expr) $($rule:ident)*) => {
        #[::tokio::test]
        async fn $name() {
            let $shared = $start;
            $($crate::testing::$rule(::std::sync::Arc::new($harness.await)).await;)*
        }
    };
    (($harness:expr) $($rule:ident)*) => {
        $(
            #[::tokio::test]
            async fn $rule() {
                $crate::testing::$rule(::std::sync::Arc::new($harness.await)).await;
            }
        )*
    };
}
