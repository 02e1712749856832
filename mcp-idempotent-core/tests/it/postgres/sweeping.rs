//! What a sweep removes, and what it never does, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{Store, store::LeaseEnd};

use super::database::{Database, claim, lease};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_sweep_that_passes_a_renewed_lease_by_does_not_look_at_it_again() {
    let database = Database::new().await;
    let mut claim = claim("key", "{}");
    (claim.lease, claim.in_doubt_retention) = (HOUR, HOUR);
    let lease = lease(&database.store, &claim).await;
    let renewed = database.store.renew(&lease, 9 * HOUR).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    database.age(claim.id, 3 * HOUR).await;
    assert_eq!(database.store.sweep(10).await.unwrap(), 0);
    database
        .until("SELECT expires_at = lease_until + interval '1 hour' FROM {s}.records")
        .await;
}

/// More than one statement removes.
#[tokio::test]
async fn a_sweep_removes_every_kind_of_ended_record_and_no_other() {
    let database = Database::new().await;
    let hour = "interval '1 hour'";
    let mut kept = 0;
    // Columns: state, lease_until, in_doubt_retention, expires_at, purge_at.
    for (count, row, ended) in [
        (
            800,
            "0, now() - 2 * {h}, 3600000000, now() - {h}, NULL",
            true,
        ),
        (800, "1, NULL, NULL, now() - {h}, now() - {h}", true),
        (800, "2, NULL, NULL, now() - {h}, NULL", true),
        (10, "3, NULL, NULL, now() - {h}, now() - {h}", true),
        (800, "4, NULL, NULL, now() - {h}, NULL", true),
        (3, "0, now() - {h}, 7200000000, now() + {h}, NULL", false),
        (3, "0, now() + {h}, 7200000000, now() - {h}, NULL", false),
        (3, "1, NULL, NULL, now() + {h}, now() + {h}", false),
        (3, "2, NULL, NULL, now() + {h}, NULL", false),
        (3, "2, NULL, NULL, NULL, NULL", false),
        (3, "3, NULL, NULL, now() + {h}, now() + {h}", false),
        (3, "4, NULL, NULL, now() + {h}, NULL", false),
    ] {
        if !ended {
            kept += count;
        }
        let row = row.replace("{h}", hour);
        database
            .execute(&format!(
                "INSERT INTO {{s}}.records (id, fingerprint, token, attempts, tool, created_at, \
                 state, lease_until, in_doubt_retention, expires_at, purge_at) \
                 SELECT gen_random_uuid()::text::bytea, '', 1, 1, 'tool', now(), {row} \
                 FROM generate_series(1, {count})"
            ))
            .await;
    }
    assert_eq!(database.store.sweep(5000).await.unwrap(), 3210);
    assert_eq!(database.records().await, kept);
    assert_eq!(database.store.sweep(5000).await.unwrap(), 0);
}
