//! Rules for leases that continue: renewed, taken over, or released and claimed again.

use std::{sync::Arc, time::Duration};

use super::{
    Harness,
    lease::win,
    step::{
        MINUTE, abandon, age, another_call, assert_fenced, assert_in_doubt, assert_result,
        complete, fresh_claim, lease_of, race, record_of, release, renew, result, state_of,
        store_of, sweep,
    },
};
use crate::{
    record::RecordState,
    store::{Claim, Lease, Store},
};

pub async fn a_renewed_lease_lasts_longer<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    for _ in 0..3 {
        age(&harness, &claim, claim.lease - MINUTE).await;
        renew(store, &lease, claim.lease).await;
        let RecordState::InProgress { lease_remaining } = state_of(store, &claim).await else {
            panic!("expected a running call");
        };
        assert!(lease_remaining > claim.lease - MINUTE && lease_remaining <= claim.lease);
    }
    renew(store, &lease, 2 * MINUTE).await;
    age(&harness, &claim, MINUTE).await;
    complete(store, &lease, result("done")).await;
}

pub async fn a_lapsed_lease_is_not_revived<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    age(&harness, &claim, claim.lease).await;
    assert_fenced(&harness, &lease).await;
    assert_in_doubt(&harness, &claim).await;
}

pub async fn a_call_in_doubt_can_be_taken_over_and_fences_who_had_it<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for lapses in [true, false] {
        let claim = fresh_claim();
        let first = lease_of(store, &claim).await;
        assert_eq!((first.origin, first.attempts), (first.token, 1));
        leave_in_doubt(&harness, &claim, &first, lapses).await;
        let second = take_over(harness.elsewhere(), &claim).await;
        assert!(second.token > first.token, "tokens grow");
        assert_eq!((second.origin, second.attempts), (first.token, 2));
        assert_fenced(&harness, &first).await;
        leave_in_doubt(&harness, &claim, &second, lapses).await;
        let third = take_over(store, &claim).await;
        assert_eq!((third.origin, third.attempts), (first.token, 3));
        assert_fenced(&harness, &second).await;
        complete(store, &third, result("third")).await;
        assert_result(store, &claim, "third").await;
    }
}

pub async fn nothing_but_the_same_call_in_doubt_is_taken_over<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let refused = async |claim: &Claim, token: i64| {
        let taken = store.take_over(claim, token).await;
        assert!(matches!(taken, Ok(None)), "{taken:?}");
    };
    refused(&claim, 1).await;
    let lease = lease_of(store, &claim).await;
    refused(&claim, lease.token).await;
    refused(&fresh_claim(), lease.token).await;
    age(&harness, &claim, claim.lease + MINUTE).await;
    refused(&claim, lease.token + 1).await;
    refused(&another_call(&claim), lease.token).await;
    assert_in_doubt(&harness, &claim).await;
    let second = take_over(store, &claim).await;
    refused(&claim, lease.token).await;
    refused(&claim, second.token).await;
    complete(store, &second, result("done")).await;
    refused(&claim, second.token).await;
}

pub async fn one_of_many_take_overs_wins<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let first = lease_of(harness.store(), &claim).await;
    let mut current = first.clone();
    for round in 2..6 {
        leave_in_doubt(&harness, &claim, &current, round % 2 == 0).await;
        let answers = race(&harness, 16, |harness, elsewhere| {
            let (claim, token) = (claim.clone(), current.token);
            async move {
                store_of(&*harness, elsewhere)
                    .take_over(&claim, token)
                    .await
            }
        });
        let mut won = Vec::new();
        for answer in answers.await {
            won.extend(answer.expect("the store answers"));
        }
        assert_eq!(won.len(), 1, "{won:?}");
        assert_fenced(&harness, &current).await;
        let next = won.remove(0);
        assert!(next.token > current.token, "tokens grow");
        assert_eq!((next.origin, next.attempts), (first.token, round));
        current = next;
    }
    complete(harness.elsewhere(), &current, result("sent")).await;
    assert_result(harness.store(), &claim, "sent").await;
}

pub async fn a_record_in_doubt_is_kept_for_its_own_retention<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for lapses in [true, false] {
        let mut claim = fresh_claim();
        claim.in_doubt_retention = 100 * MINUTE;
        let lease = lease_of(store, &claim).await;
        // A renewed lease is in doubt from its latest end on.
        age(&harness, &claim, claim.lease - MINUTE).await;
        renew(store, &lease, claim.lease).await;
        leave_in_doubt(&harness, &claim, &lease, lapses).await;
        age(&harness, &claim, 97 * MINUTE).await;
        assert_eq!(sweep(store).await, 0);
        assert_in_doubt(&harness, &claim).await;
        age(&harness, &claim, 4 * MINUTE).await;
        assert!(record_of(store, &claim).await.is_none());
        let taken = store.take_over(&claim, lease.token).await;
        assert!(matches!(taken, Ok(None)), "{taken:?}");
        assert_eq!(sweep(store).await, 1);
        let anew = lease_of(store, &claim).await;
        assert_eq!((anew.origin, anew.attempts), (anew.token, 1));
        assert!(anew.token > lease.token, "tokens grow");
        release(store, &anew, Duration::ZERO).await;
    }
}

pub async fn a_key_that_was_given_back_remembers_its_origin<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let first = lease_of(store, &claim).await;
    release(store, &first, 10 * MINUTE).await;
    assert!(record_of(store, &claim).await.is_none());
    assert_fenced(&harness, &first).await;
    sweep(store).await;
    age(&harness, &claim, 9 * MINUTE).await;
    // This may be a different call, because a free key is bound to no call.
    let asked = another_call(&claim);
    let second = lease_of(store, &asked).await;
    assert!(second.token > first.token, "tokens grow");
    assert_eq!((second.origin, second.attempts), (first.origin, 2));
    assert_fenced(&harness, &first).await;
    let record = record_of(store, &claim).await.expect("a record");
    assert_eq!(record.fingerprint, asked.fingerprint);
    release(store, &second, 10 * MINUTE).await;
    age(&harness, &claim, 11 * MINUTE).await;
    assert_eq!(sweep(store).await, 1);
    let third = lease_of(store, &claim).await;
    assert_eq!((third.origin, third.attempts), (third.token, 1));
}

pub async fn what_is_left_of_a_free_key_is_forgotten_unswept_too<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let first = lease_of(store, &claim).await;
    release(store, &first, MINUTE).await;
    age(&harness, &claim, 2 * MINUTE).await;
    let second = lease_of(store, &claim).await;
    assert_eq!((second.origin, second.attempts), (second.token, 1));
}

pub async fn racing_claims_of_a_free_key_win_once<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    for round in 0..3 {
        let won = win(&harness, &claim).await;
        assert_eq!(won.attempts, round + 1);
        release(harness.store(), &won, 10 * MINUTE).await;
    }
}

async fn leave_in_doubt<H: Harness>(harness: &Arc<H>, claim: &Claim, lease: &Lease, lapses: bool) {
    if lapses {
        age(harness, claim, claim.lease + MINUTE).await;
    } else {
        abandon(harness.store(), lease).await;
    }
    let RecordState::InDoubt {
        token, attempts, ..
    } = state_of(harness.store(), claim).await
    else {
        panic!("expected a record in doubt");
    };
    assert_eq!((token, attempts), (lease.token, lease.attempts));
}

async fn take_over<S: Store>(store: &S, claim: &Claim) -> Lease {
    let RecordState::InDoubt { token, .. } = state_of(store, claim).await else {
        panic!("expected a record in doubt");
    };
    store
        .take_over(claim, token)
        .await
        .expect("the store answers")
        .expect("it is in doubt")
}
