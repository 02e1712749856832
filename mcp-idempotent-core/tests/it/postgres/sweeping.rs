//! What a sweep removes, and what it never does, besides what the conformance suite covers.

use std::time::Duration;

use mcp_idempotent_core::{Store, store::LeaseEnd};

use super::database::{Database, claim, lease};

const HOUR: Duration = Duration::from_secs(3600);

/// Its `expires_at` is still the one that the claim set.
#[tokio::test]
async fn a_sweep_passes_a_renewed_lease_by() {
    let database = Database::new().await;
    let mut claim = claim("key", "{}");
    (claim.lease, claim.in_doubt_retention) = (HOUR, HOUR);
    let lease = lease(&database.store, &claim).await;
    let renewed = database.store.renew(&lease, 9 * HOUR).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    database.age(claim.id, 3 * HOUR).await;
    database
        .until("SELECT expires_at < now() FROM {s}.records")
        .await;
    assert_eq!(database.store.sweep(10).await.unwrap(), 0);
    assert_eq!(database.records().await, 1);
}

#[tokio::test]
async fn a_sweep_in_parts_comes_to_every_record_and_a_whole_one_at_once() {
    let database = Database::new().await;
    // About 20 MiB.
    let fill = "INSERT INTO {s}.records (id, fingerprint, token, labels, state, \
         expires_at, purge_at) SELECT gen_random_uuid()::text::bytea, '', 1, repeat('x', 1000), 1, \
         now() - interval '1 hour', NULL \
         FROM generate_series(1, 20000)";
    database.execute(fill).await;
    let first = database.store.sweep_part(100_000).await.unwrap();
    assert!((5_000..15_000).contains(&first), "{first}");
    let mut swept = first;
    for _ in 0..3 {
        swept += database.store.sweep_part(100_000).await.unwrap();
    }
    assert_eq!(swept, 20_000);
    assert_eq!(database.records().await, 0);

    database.execute(fill).await;
    assert_eq!(database.store.sweep(100).await.unwrap(), 100);
    assert_eq!(database.store.sweep(100_000).await.unwrap(), 19_900);
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
        (400, "1, NULL, NULL, now() - {h}, now() - {h}", true),
        (400, "1, NULL, NULL, now() - {h}, NULL", true),
        (800, "2, NULL, NULL, now() - {h}, NULL", true),
        (10, "3, NULL, NULL, now() - {h}, now() - {h}", true),
        (800, "4, NULL, NULL, now() - {h}, NULL", true),
        (3, "0, now() - {h}, 7200000000, now() + {h}, NULL", false),
        (3, "0, now() + {h}, 7200000000, now() - {h}, NULL", false),
        (3, "1, NULL, NULL, now() + {h}, now() + {h}", false),
        (3, "1, NULL, NULL, now() + {h}, NULL", false),
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
                "INSERT INTO {{s}}.records (id, fingerprint, token, labels, \
                 state, lease_until, in_doubt_retention, expires_at, purge_at) \
                 SELECT gen_random_uuid()::text::bytea, '', 1, 'tool', {row} \
                 FROM generate_series(1, {count})"
            ))
            .await;
    }
    assert_eq!(database.store.sweep(5000).await.unwrap(), 3210);
    assert_eq!(database.records().await, kept);
    assert_eq!(database.store.sweep(5000).await.unwrap(), 0);
}
