use mcp_idempotent_core::MemoryStore;

use super::*;

#[test]
fn a_rule_can_say_everything_that_a_policy_has() {
    let seconds = Duration::from_secs;
    let rule: Rule<MemoryStore> = Rule::lease(OnError::Release)
        .with_key(KeyRequirement::Required)
        .with_key_argument("key")
        .with_ignored("trace")
        .with_ignored("/at")
        .with_also_known_as("before")
        .with_retention(seconds(1))
        .with_window(seconds(2))
        .with_wait(Wait::Reject)
        .with_rotated_keys(RotatedKeys::Join)
        .with_rotated_keys_window(seconds(10))
        .with_on_error_result(OnErrorResult::Record)
        .with_on_expired(OnExpired::Refuse)
        .with_tombstone(seconds(3))
        .with_lease(seconds(100))
        .with_heartbeat(seconds(5))
        .with_rerun_in_doubt()
        .with_verify_timeout(seconds(6))
        .with_in_doubt_retention(seconds(7))
        .with_transaction_timeout(seconds(9))
        .with_max_result_bytes(8)
        .with_run_unprotected_when_store_is_unavailable(true);
    // Without `..`, so that a new field is not forgotten.
    let expected = PolicyOverride {
        key: Some(KeyRequirement::Required),
        key_argument: Some("/key".into()),
        ignored: Some(vec!["/trace".into(), "/at".into()].into()),
        also_known_as: Some("before".into()),
        retention: Some(seconds(1)),
        window: Some(seconds(2)),
        wait: Some(Wait::Reject),
        rotated_keys: Some(RotatedKeys::Join),
        rotated_keys_window: Some(seconds(10)),
        on_error: Some(OnError::Release),
        on_error_result: Some(OnErrorResult::Record),
        on_expired: Some(OnExpired::Refuse),
        tombstone: Some(seconds(3)),
        lease: Some(seconds(100)),
        heartbeat: Some(seconds(5)),
        on_doubt: Some(OnDoubt::Rerun),
        verify_timeout: Some(seconds(6)),
        in_doubt_retention: Some(seconds(7)),
        transaction_timeout: Some(seconds(9)),
        max_result_bytes: Some(8),
        run_unprotected_when_store_is_unavailable: Some(true),
    };
    assert_eq!(rule.policy, expected);
}
