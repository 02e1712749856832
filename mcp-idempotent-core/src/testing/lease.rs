//! The rules of lease mode.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Harness, another_call, claim, fresh_claim, lease_of, record_of, result, state_of};
use crate::{
    policy::OnExpired,
    record::RecordState,
    store::{Claimed, Completion, Inspected, Lease, LeaseEnd, Store as _},
};

const MINUTE: Duration = Duration::from_secs(60);

pub async fn one_of_many_concurrent_claims_wins<H: Harness>(harness: Arc<H>) {
    let wanted = fresh_claim();
    let claims = (0..32).map(|_| {
        let (harness, wanted) = (Arc::clone(&harness), wanted.clone());
        tokio::spawn(async move { harness.store().claim(&wanted).await })
    });
    let mut won = 0;
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.expect("no panic").expect("the store answers") {
            Claimed::New(_) => won += 1,
            Claimed::InProgress => {}
            Claimed::Found(record) => {
                assert!(matches!(record.state, RecordState::InProgress { .. }));
            }
            Claimed::Conflict => panic!("equal calls do not conflict"),
        }
    }
    assert_eq!(won, 1);
}

pub async fn a_claim_in_progress_is_reported_with_its_fingerprint<H: Harness>(harness: Arc<H>) {
    let first = fresh_claim();
    lease_of(harness.store(), &first).await;
    for asked in [first.clone(), another_call(&first)] {
        match harness
            .store()
            .claim(&asked)
            .await
            .expect("the store answers")
        {
            Claimed::Found(record) => {
                assert_eq!(record.fingerprint, first.fingerprint);
                let RecordState::InProgress { lease_remaining } = record.state else {
                    panic!("expected in progress, found {:?}", record.state);
                };
                assert!(lease_remaining <= first.lease && lease_remaining > first.lease / 2);
            }
            other => panic!("expected the record, found {other:?}"),
        }
    }
}

pub async fn a_result_is_returned_byte_for_byte<H: Harness>(harness: Arc<H>) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = every_byte.iter().copied().cycle().take(1 << 20).collect();
    for bytes in [Vec::new(), every_byte, large] {
        let (claim, bytes) = (fresh_claim(), Bytes::from(bytes));
        let lease = lease_of(harness.store(), &claim).await;
        let completion = Completion::new(Some(bytes.clone()), MINUTE);
        let LeaseEnd::Done(completed) = harness
            .store()
            .complete(&lease, completion)
            .await
            .expect("the store answers")
        else {
            panic!("the lease is current");
        };
        let RecordState::Completed { response, at } = state_of(harness.store(), &claim).await
        else {
            panic!("expected a completed record");
        };
        assert!(response == Some(bytes), "the bytes differ");
        assert_eq!(at, completed);
    }
}

pub async fn a_result_that_was_too_large_leaves_a_completed_record<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    let end = harness
        .store()
        .complete(&lease, Completion::new(None, MINUTE))
        .await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))));
    assert!(matches!(
        state_of(harness.store(), &claim).await,
        RecordState::Completed { response: None, .. }
    ));
}

pub async fn a_released_key_is_free_and_its_token_is_not_reused<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut tokens = HashSet::new();
    let mut last = i64::MIN;
    for _ in 0..5 {
        let lease = lease_of(harness.store(), &claim).await;
        assert!(tokens.insert(lease.token), "a token was reused");
        assert!(lease.token > last, "tokens grow");
        last = lease.token;
        let end = harness.store().release(&lease, Duration::ZERO).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))));
        assert!(record_of(harness.store(), &claim).await.is_none());
    }
}

pub async fn a_completed_attempt_cannot_be_changed<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    harness
        .store()
        .complete(&lease, result("first"))
        .await
        .expect("the store answers");
    assert_fenced(&harness, &lease).await;
    let RecordState::Completed { response, .. } = state_of(harness.store(), &claim).await else {
        panic!("expected a completed record");
    };
    assert_eq!(response.as_deref(), Some(&b"first"[..]));
}

pub async fn a_wrong_token_is_fenced<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let stale = lease_of(harness.store(), &claim).await;
    let end = harness.store().release(&stale, Duration::ZERO).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))));
    assert_fenced(&harness, &stale).await;
    let current = lease_of(harness.store(), &claim).await;
    assert_fenced(&harness, &stale).await;
    let end = harness.store().complete(&current, result("current")).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))));
}

pub async fn an_abandoned_attempt_is_in_doubt<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    let end = harness.store().abandon(&lease).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))));
    assert!(matches!(
        state_of(harness.store(), &claim).await,
        RecordState::InDoubt { .. }
    ));
    assert_fenced(&harness, &lease).await;
    harness.age(claim.id, claim.in_doubt_retention / 2).await;
    assert_in_doubt(&harness, &claim).await;
}

pub async fn a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    lease_of(harness.store(), &claim).await;
    harness.age(claim.id, claim.lease - MINUTE).await;
    assert!(matches!(
        state_of(harness.store(), &claim).await,
        RecordState::InProgress { .. }
    ));
    harness.age(claim.id, 2 * MINUTE).await;
    assert_in_doubt(&harness, &claim).await;
    harness.age(claim.id, claim.in_doubt_retention / 2).await;
    harness
        .store()
        .sweep(1000)
        .await
        .expect("the store answers");
    assert_in_doubt(&harness, &claim).await;
}

pub async fn a_late_attempt_is_fenced<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    harness.age(claim.id, claim.lease + MINUTE).await;
    assert_fenced(&harness, &lease).await;
    assert_in_doubt(&harness, &claim).await;
}

pub async fn an_expired_record_is_absent_before_it_is_swept<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    harness
        .store()
        .complete(&lease, result("old"))
        .await
        .expect("the store answers");
    harness.age(claim.id, MINUTE / 2).await;
    assert!(record_of(harness.store(), &claim).await.is_some());
    harness.age(claim.id, MINUTE).await;
    assert!(record_of(harness.store(), &claim).await.is_none());
    let anew = another_call(&claim);
    let lease = lease_of(harness.store(), &anew).await;
    harness
        .store()
        .complete(&lease, result("new"))
        .await
        .expect("the store answers");
    let record = record_of(harness.store(), &anew).await.expect("a record");
    assert_eq!(record.fingerprint, anew.fingerprint);
}

pub async fn racing_claims_of_an_expired_record_win_once<H: Harness>(harness: Arc<H>) {
    let wanted = fresh_claim();
    for _ in 0..3 {
        let lease = lease_of(harness.store(), &wanted).await;
        harness
            .store()
            .complete(&lease, result("old"))
            .await
            .expect("the store answers");
        harness.age(wanted.id, 2 * MINUTE).await;
        let claims = (0..8).map(|_| {
            let (harness, wanted) = (Arc::clone(&harness), wanted.clone());
            tokio::spawn(async move { harness.store().claim(&wanted).await })
        });
        let mut won = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            let claimed = claim.await.expect("no panic").expect("the store answers");
            if let Claimed::New(lease) = claimed {
                won.push(lease);
            }
        }
        assert_eq!(won.len(), 1);
        let end = harness.store().release(&won[0], Duration::ZERO).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))));
    }
}

pub async fn an_expired_record_is_reported_where_that_is_asked_for<H: Harness>(harness: Arc<H>) {
    let mut refusing = fresh_claim();
    refusing.on_expired = OnExpired::Refuse;
    let lease = lease_of(harness.store(), &refusing).await;
    let mut completion = result("old");
    completion.tombstone = 10 * MINUTE;
    harness
        .store()
        .complete(&lease, completion)
        .await
        .expect("the store answers");
    harness.age(refusing.id, 2 * MINUTE).await;
    for _ in 0..2 {
        assert!(matches!(
            state_of(harness.store(), &refusing).await,
            RecordState::Expired
        ));
        let claimed = harness.store().claim(&refusing).await;
        assert!(
            matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::Expired)),
            "{claimed:?}"
        );
        // The tombstone outlives the sweep.
        harness
            .store()
            .sweep(1000)
            .await
            .expect("the store answers");
    }
    harness.age(refusing.id, 20 * MINUTE).await;
    assert!(record_of(harness.store(), &refusing).await.is_none());
    lease_of(harness.store(), &refusing).await;
}

pub async fn a_sweep_removes_what_expired_and_nothing_else<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let (expired, kept, running, doubtful) =
        (fresh_claim(), fresh_claim(), fresh_claim(), fresh_claim());
    for claim in [&expired, &kept] {
        let lease = lease_of(store, claim).await;
        let mut completion = result("result");
        if claim.id == kept.id {
            completion.retention = 100 * MINUTE;
        }
        store
            .complete(&lease, completion)
            .await
            .expect("the store answers");
    }
    lease_of(store, &running).await;
    let lease = lease_of(store, &doubtful).await;
    store.abandon(&lease).await.expect("the store answers");
    for claim in [&expired, &kept, &running, &doubtful] {
        harness.age(claim.id, 2 * MINUTE).await;
    }
    assert_eq!(store.sweep(1000).await.expect("the store answers"), 1);
    assert_eq!(store.sweep(1000).await.expect("the store answers"), 0);
    assert!(record_of(store, &expired).await.is_none());
    for claim in [&kept, &running, &doubtful] {
        assert!(record_of(store, claim).await.is_some());
    }
}

pub async fn a_sweep_keeps_to_its_limit<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claims: Vec<_> = (0..5).map(|_| fresh_claim()).collect();
    for claim in &claims {
        let lease = lease_of(store, claim).await;
        store
            .complete(&lease, result("result"))
            .await
            .expect("the store answers");
    }
    for claim in &claims {
        harness.age(claim.id, 2 * MINUTE).await;
    }
    let mut swept = Vec::new();
    for _ in 0..4 {
        swept.push(store.sweep(2).await.expect("the store answers"));
    }
    assert_eq!(swept, [2, 2, 1, 0]);
}

pub async fn a_token_is_not_reused_after_a_sweep<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let first = lease_of(store, &claim).await;
    store
        .complete(&first, result("result"))
        .await
        .expect("the store answers");
    harness.age(claim.id, 2 * MINUTE).await;
    store.sweep(1000).await.expect("the store answers");
    let second = lease_of(store, &claim).await;
    assert!(second.token > first.token);
    assert_fenced(&harness, &first).await;
}

pub async fn a_look_up_sees_the_record_and_claims_nothing<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    assert!(record_of(harness.store(), &claim).await.is_none());
    assert!(record_of(harness.store(), &claim).await.is_none());
    lease_of(harness.store(), &claim).await;
    let record = record_of(harness.store(), &another_call(&claim))
        .await
        .expect("a record");
    assert_eq!(record.fingerprint, claim.fingerprint);
}

pub async fn an_inspection_tells_what_a_key_holds_and_claims_nothing<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let store = harness.store();
    let inspect = async || store.inspect(&claim).await.expect("the store answers");
    for _ in 0..2 {
        let seen = inspect().await;
        assert!(matches!(seen, Inspected::NotSeen), "{seen:?}");
    }
    let lease = lease_of(store, &claim).await;
    match inspect().await {
        Inspected::InProgress => {}
        Inspected::Found(record) => {
            assert!(matches!(record.state, RecordState::InProgress { .. }));
        }
        Inspected::NotSeen => panic!("a running call was not seen"),
    }
    let ended = store.complete(&lease, result("done")).await;
    assert!(matches!(ended, Ok(LeaseEnd::Done(_))), "{ended:?}");
    let Inspected::Found(record) = inspect().await else {
        panic!("expected a record");
    };
    assert_eq!(record.fingerprint, claim.fingerprint);
    assert!(matches!(record.state, RecordState::Completed { .. }));
}

pub async fn two_keys_do_not_meet<H: Harness>(harness: Arc<H>) {
    let (one, two) = (claim("one", "{}"), claim("two", "{}"));
    lease_of(harness.store(), &one).await;
    lease_of(harness.store(), &two).await;
}

pub(super) async fn assert_fenced<H: Harness>(harness: &Arc<H>, lease: &Lease) {
    let store = harness.store();
    let late = store.renew(lease, MINUTE).await;
    assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
    let late = store.complete(lease, result("late")).await;
    assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
    for keep_origin in [Duration::ZERO, MINUTE] {
        let late = store.release(lease, keep_origin).await;
        assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
    }
    let late = store.abandon(lease).await;
    assert!(matches!(late, Ok(LeaseEnd::Fenced)), "{late:?}");
}

pub(super) async fn assert_in_doubt<H: Harness>(harness: &Arc<H>, claim: &crate::store::Claim) {
    let claimed = harness.store().claim(claim).await;
    assert!(
        matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::InDoubt { .. })),
        "{claimed:?}"
    );
}
