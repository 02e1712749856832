//! Rules for lease mode.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Harness,
    step::{
        MINUTE, abandon, age, another_call, assert_fenced, assert_in_doubt, assert_result,
        assert_running, complete, completed, fresh_claim, lease_of, race, record_of, release,
        renew, result, state_of, store_of, sweep,
    },
};
use crate::{
    policy::OnExpired,
    record::RecordState,
    store::{Claimed, Completion, Inspected, Store as _},
};

pub async fn one_of_many_concurrent_claims_wins<H: Harness>(harness: Arc<H>) {
    for _ in 0..5 {
        let claim = fresh_claim();
        let answers = race(&harness, 32, |harness, elsewhere| {
            let claim = claim.clone();
            async move { store_of(&*harness, elsewhere).claim(&claim).await }
        });
        let mut won = 0;
        for answer in answers.await {
            match answer.expect("the store answers") {
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
}

pub async fn a_claim_is_seen_by_everybody_with_its_fingerprint<H: Harness>(harness: Arc<H>) {
    let first = fresh_claim();
    lease_of(harness.store(), &first).await;
    for store in [harness.store(), harness.elsewhere()] {
        for asked in [first.clone(), another_call(&first)] {
            let claimed = store.claim(&asked).await.expect("the store answers");
            let Claimed::Found(record) = claimed else {
                panic!("expected the record, found {claimed:?}");
            };
            assert_eq!(record.fingerprint, first.fingerprint);
            let RecordState::InProgress { lease_remaining } = record.state else {
                panic!("expected in progress, found {:?}", record.state);
            };
            assert!(lease_remaining <= first.lease && lease_remaining > first.lease - MINUTE);
        }
    }
}

pub async fn a_result_is_returned_byte_for_byte<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = every_byte.iter().copied().cycle().take(1 << 20).collect();
    for bytes in [Vec::new(), every_byte, large] {
        let (claim, bytes) = (fresh_claim(), Bytes::from(bytes));
        let lease = lease_of(store, &claim).await;
        let completion = Completion::new(Some(bytes.clone()), MINUTE);
        let at = complete(store, &lease, completion).await;
        let (response, recorded) = completed(harness.elsewhere(), &claim).await;
        assert!(response == Some(bytes), "the bytes differ");
        assert_eq!(recorded, at);
    }
}

pub async fn a_result_that_was_too_large_leaves_a_completed_record<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    complete(harness.store(), &lease, Completion::new(None, MINUTE)).await;
    assert_eq!(completed(harness.store(), &claim).await.0, None);
}

pub async fn a_released_key_is_free_and_its_token_is_not_reused<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let mut last = i64::MIN;
    for _ in 0..5 {
        let lease = lease_of(harness.store(), &claim).await;
        assert!(lease.token > last, "tokens grow");
        last = lease.token;
        release(harness.store(), &lease, Duration::ZERO).await;
        assert!(record_of(harness.store(), &claim).await.is_none());
    }
}

pub async fn a_completed_attempt_cannot_be_changed<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    complete(harness.store(), &lease, result("first")).await;
    assert_fenced(&harness, &lease).await;
    assert_result(harness.store(), &claim, "first").await;
}

pub async fn a_wrong_token_is_fenced<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let stale = lease_of(store, &claim).await;
    release(store, &stale, Duration::ZERO).await;
    assert_fenced(&harness, &stale).await;
    let current = lease_of(store, &claim).await;
    assert_fenced(&harness, &stale).await;
    assert_running(store, &claim).await;
    complete(store, &current, result("current")).await;
    assert_fenced(&harness, &stale).await;
    assert_result(store, &claim, "current").await;
}

pub async fn an_abandoned_attempt_is_in_doubt<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    abandon(harness.store(), &lease).await;
    assert_in_doubt(&harness, &claim).await;
    assert_fenced(&harness, &lease).await;
    let retention = claim.in_doubt_retention;
    age(&harness, &claim, retention - 60 * MINUTE).await;
    assert_eq!(sweep(harness.store()).await, 0);
    assert_in_doubt(&harness, &claim).await;
}

pub async fn a_lapsed_lease_is_in_doubt_and_is_not_claimed_anew<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    lease_of(harness.store(), &claim).await;
    age(&harness, &claim, claim.lease - MINUTE).await;
    assert_running(harness.store(), &claim).await;
    age(&harness, &claim, MINUTE).await;
    assert_in_doubt(&harness, &claim).await;
    age(&harness, &claim, claim.in_doubt_retention / 2).await;
    assert_eq!(sweep(harness.store()).await, 0);
    assert_in_doubt(&harness, &claim).await;
}

pub async fn an_expired_record_is_absent_before_it_is_swept<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    complete(store, &lease, result("old")).await;
    age(&harness, &claim, MINUTE / 2).await;
    assert!(record_of(store, &claim).await.is_some());
    age(&harness, &claim, MINUTE / 2).await;
    assert!(record_of(store, &claim).await.is_none());
    let anew = another_call(&claim);
    let lease = lease_of(store, &anew).await;
    complete(store, &lease, result("new")).await;
    let record = record_of(store, &anew).await.expect("a record");
    assert_eq!(record.fingerprint, anew.fingerprint);
}

pub async fn racing_claims_of_an_expired_record_win_once<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    for _ in 0..3 {
        let lease = lease_of(harness.store(), &claim).await;
        complete(harness.store(), &lease, result("old")).await;
        age(&harness, &claim, 2 * MINUTE).await;
        let won = win(&harness, &claim).await;
        release(harness.store(), &won, Duration::ZERO).await;
    }
}

/// Eight callers claim at the same time, and one wins.
pub(super) async fn win<H: Harness>(
    harness: &Arc<H>,
    claim: &crate::store::Claim,
) -> crate::store::Lease {
    let answers = race(harness, 8, |harness, elsewhere| {
        let claim = claim.clone();
        async move { store_of(&*harness, elsewhere).claim(&claim).await }
    });
    let mut won = Vec::new();
    for answer in answers.await {
        if let Claimed::New(lease) = answer.expect("the store answers") {
            won.push(lease);
        }
    }
    assert_eq!(won.len(), 1, "{won:?}");
    won.remove(0)
}

pub async fn an_expired_record_is_reported_where_that_is_asked_for<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let mut refusing = fresh_claim();
    refusing.on_expired = OnExpired::Refuse;
    let lease = lease_of(store, &refusing).await;
    let mut completion = result("old");
    completion.tombstone = 10 * MINUTE;
    complete(store, &lease, completion).await;
    age(&harness, &refusing, 2 * MINUTE).await;
    for _ in 0..2 {
        let state = state_of(store, &refusing).await;
        assert!(matches!(state, RecordState::Expired), "{state:?}");
        let claimed = store.claim(&refusing).await;
        assert!(
            matches!(&claimed, Ok(Claimed::Found(record)) if matches!(record.state, RecordState::Expired)),
            "{claimed:?}"
        );
        // The tombstone outlives the sweep.
        sweep(store).await;
    }
    age(&harness, &refusing, 20 * MINUTE).await;
    assert!(record_of(store, &refusing).await.is_none());
    lease_of(store, &refusing).await;
}

pub async fn a_sweep_removes_what_expired_and_nothing_else<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let (expired, kept, running, doubtful) =
        (fresh_claim(), fresh_claim(), fresh_claim(), fresh_claim());
    for (claim, retention) in [(&expired, MINUTE), (&kept, 100 * MINUTE)] {
        let lease = lease_of(store, claim).await;
        let mut completion = result("result");
        completion.retention = retention;
        complete(store, &lease, completion).await;
    }
    lease_of(store, &running).await;
    let lease = lease_of(store, &doubtful).await;
    abandon(store, &lease).await;
    for claim in [&expired, &kept, &running, &doubtful] {
        age(&harness, claim, 2 * MINUTE).await;
    }
    assert_eq!((sweep(store).await, sweep(store).await), (1, 0));
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
        complete(store, &lease, result("result")).await;
    }
    for claim in &claims {
        age(&harness, claim, 2 * MINUTE).await;
    }
    let mut swept = Vec::new();
    for limit in [0, 2, 2, 2, 2] {
        swept.push(store.sweep(limit).await.expect("the store answers"));
    }
    assert_eq!(swept, [0, 2, 2, 1, 0]);
}

pub async fn tokens_grow_whatever_is_left_of_their_records<H: Harness>(harness: Arc<H>) {
    let (released, swept) = (fresh_claim(), fresh_claim());
    let mut last = i64::MIN;
    for round in 0..6 {
        let store = store_of(&*harness, round % 2 == 1);
        let first = lease_of(store, &released).await;
        release(store, &first, Duration::ZERO).await;
        let second = lease_of(store, &swept).await;
        complete(store, &second, result("result")).await;
        age(&harness, &swept, 2 * MINUTE).await;
        assert_eq!(sweep(store).await, 1);
        let third = lease_of(harness.elsewhere(), &fresh_claim()).await;
        for token in [first.token, second.token, third.token] {
            assert!(token > last, "tokens grow");
            last = token;
        }
        assert_fenced(&harness, &second).await;
    }
}

pub async fn a_look_up_sees_the_record_and_claims_nothing<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    assert!(record_of(harness.store(), &claim).await.is_none());
    assert!(record_of(harness.store(), &claim).await.is_none());
    lease_of(harness.store(), &claim).await;
    let record = record_of(harness.store(), &another_call(&claim)).await;
    assert_eq!(record.expect("a record").fingerprint, claim.fingerprint);
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
    complete(store, &lease, result("done")).await;
    let Inspected::Found(record) = inspect().await else {
        panic!("expected a record");
    };
    assert_eq!(record.fingerprint, claim.fingerprint);
    assert!(matches!(record.state, RecordState::Completed { .. }));
}

pub async fn two_keys_do_not_meet<H: Harness>(harness: Arc<H>) {
    lease_of(harness.store(), &fresh_claim()).await;
    lease_of(harness.store(), &fresh_claim()).await;
}

pub async fn a_running_lease_is_not_swept<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for (in_doubt_retention, period) in [(Duration::ZERO, 60 * MINUTE), (60 * MINUTE, 600 * MINUTE)]
    {
        let mut claim = fresh_claim();
        claim.in_doubt_retention = in_doubt_retention;
        let lease = lease_of(store, &claim).await;
        age(&harness, &claim, claim.lease - MINUTE).await;
        renew(store, &lease, period).await;
        // Past the lease's first end, and past the time that the record would be kept after it.
        age(&harness, &claim, period - MINUTE).await;
        assert_eq!(sweep(store).await, 0);
        assert_running(store, &claim).await;
        age(&harness, &claim, MINUTE + in_doubt_retention).await;
        assert!(record_of(store, &claim).await.is_none());
        assert_eq!(sweep(store).await, 1);
    }
}
