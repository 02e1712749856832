//! The rules of leases that go on: renewed, taken over, and given back to be claimed again.

use std::{sync::Arc, time::Duration};

use super::{Harness, another_call, fresh_claim, lease_of, record_of, result, state_of};
use crate::{
    record::RecordState,
    store::{Claim, Claimed, Lease, LeaseEnd, Store},
    testing::lease::{assert_fenced, assert_in_doubt},
};

const MINUTE: Duration = Duration::from_secs(60);

pub async fn a_renewed_lease_lasts_longer<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    for _ in 0..3 {
        harness.age(claim.id, claim.lease - MINUTE).await;
        let renewed = store.renew(&lease, claim.lease).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        let RecordState::InProgress { lease_remaining } = state_of(store, &claim).await else {
            panic!("expected a running call");
        };
        assert!(lease_remaining > claim.lease - MINUTE && lease_remaining <= claim.lease);
    }
    let renewed = store.renew(&lease, 2 * MINUTE).await;
    assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
    harness.age(claim.id, MINUTE).await;
    let end = store.complete(&lease, result("done")).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
}

pub async fn a_lapsed_lease_is_not_revived<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    harness.age(claim.id, claim.lease + MINUTE).await;
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
        let second = take_over(store, &claim).await;
        assert!(second.token > first.token, "tokens grow");
        assert_eq!((second.origin, second.attempts), (first.token, 2));
        assert_fenced(&harness, &first).await;
        leave_in_doubt(&harness, &claim, &second, lapses).await;
        let third = take_over(store, &claim).await;
        assert_eq!((third.origin, third.attempts), (first.token, 3));
        assert_fenced(&harness, &second).await;
        let end = store.complete(&third, result("third")).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
        let RecordState::Completed { response, .. } = state_of(store, &claim).await else {
            panic!("expected a completed record");
        };
        assert_eq!(response.as_deref(), Some(&b"third"[..]));
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
    harness.age(claim.id, claim.lease + MINUTE).await;
    refused(&claim, lease.token + 1).await;
    refused(&another_call(&claim), lease.token).await;
    assert_in_doubt(&harness, &claim).await;
    let second = take_over(store, &claim).await;
    refused(&claim, lease.token).await;
    refused(&claim, second.token).await;
    let end = store.complete(&second, result("done")).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    refused(&claim, second.token).await;
}

pub async fn one_of_many_take_overs_wins<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    let lease = lease_of(harness.store(), &claim).await;
    leave_in_doubt(&harness, &claim, &lease, false).await;
    let racers = (0..16).map(|_| {
        let (harness, claim, token) = (Arc::clone(&harness), claim.clone(), lease.token);
        tokio::spawn(async move { harness.store().take_over(&claim, token).await })
    });
    let mut won = 0;
    for racer in racers.collect::<Vec<_>>() {
        let taken = racer.await.expect("no panic").expect("the store answers");
        won += usize::from(taken.is_some());
    }
    assert_eq!(won, 1);
}

pub async fn a_record_in_doubt_is_kept_for_its_own_retention<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for lapses in [true, false] {
        let mut claim = fresh_claim();
        claim.in_doubt_retention = 100 * MINUTE;
        let lease = lease_of(store, &claim).await;
        // A lease that was renewed is in doubt from its last end.
        harness.age(claim.id, claim.lease - MINUTE).await;
        let renewed = store.renew(&lease, claim.lease).await;
        assert!(matches!(renewed, Ok(LeaseEnd::Done(_))), "{renewed:?}");
        leave_in_doubt(&harness, &claim, &lease, lapses).await;
        harness.age(claim.id, 97 * MINUTE).await;
        store.sweep(1000).await.expect("the store answers");
        assert_in_doubt(&harness, &claim).await;
        harness.age(claim.id, 4 * MINUTE).await;
        assert!(record_of(store, &claim).await.is_none());
        let taken = store.take_over(&claim, lease.token).await;
        assert!(matches!(taken, Ok(None)), "{taken:?}");
        assert_eq!(store.sweep(1000).await.expect("the store answers"), 1);
        let anew = lease_of(store, &claim).await;
        assert_eq!((anew.origin, anew.attempts), (anew.token, 1));
        assert!(anew.token > lease.token, "tokens grow");
        let end = store.release(&anew, Duration::ZERO).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    }
}

pub async fn a_key_that_was_given_back_remembers_its_origin<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let first = lease_of(store, &claim).await;
    let end = store.release(&first, 10 * MINUTE).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    assert!(record_of(store, &claim).await.is_none());
    assert_fenced(&harness, &first).await;
    store.sweep(1000).await.expect("the store answers");
    harness.age(claim.id, 9 * MINUTE).await;
    // What is asked may be another call: nothing binds a free key.
    let asked = another_call(&claim);
    let second = lease_of(store, &asked).await;
    assert!(second.token > first.token, "tokens grow");
    assert_eq!((second.origin, second.attempts), (first.origin, 2));
    assert_fenced(&harness, &first).await;
    let record = record_of(store, &claim).await.expect("a record");
    assert_eq!(record.fingerprint, asked.fingerprint);
    let end = store.release(&second, 10 * MINUTE).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    harness.age(claim.id, 11 * MINUTE).await;
    assert_eq!(store.sweep(1000).await.expect("the store answers"), 1);
    let third = lease_of(store, &claim).await;
    assert_eq!((third.origin, third.attempts), (third.token, 1));
}

pub async fn what_is_left_of_a_free_key_is_forgotten_unswept_too<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let claim = fresh_claim();
    let first = lease_of(store, &claim).await;
    let end = store.release(&first, MINUTE).await;
    assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    harness.age(claim.id, 2 * MINUTE).await;
    let second = lease_of(store, &claim).await;
    assert_eq!((second.origin, second.attempts), (second.token, 1));
}

pub async fn racing_claims_of_a_free_key_win_once<H: Harness>(harness: Arc<H>) {
    let claim = fresh_claim();
    for round in 0..3 {
        let racers = (0..8).map(|_| {
            let (harness, claim) = (Arc::clone(&harness), claim.clone());
            tokio::spawn(async move { harness.store().claim(&claim).await })
        });
        let mut won = Vec::new();
        for racer in racers.collect::<Vec<_>>() {
            let claimed = racer.await.expect("no panic").expect("the store answers");
            if let Claimed::New(lease) = claimed {
                won.push(lease);
            }
        }
        assert_eq!(won.len(), 1);
        assert_eq!(won[0].attempts, round + 1);
        let end = harness.store().release(&won[0], 10 * MINUTE).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
    }
}

async fn leave_in_doubt<H: Harness>(harness: &Arc<H>, claim: &Claim, lease: &Lease, lapses: bool) {
    if lapses {
        harness.age(claim.id, claim.lease + MINUTE).await;
    } else {
        let end = harness.store().abandon(lease).await;
        assert!(matches!(end, Ok(LeaseEnd::Done(_))), "{end:?}");
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
