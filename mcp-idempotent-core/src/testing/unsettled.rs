//! Rules about old calls that are in progress or in doubt.

use std::sync::Arc;

use super::{
    Harness,
    step::{MINUTE, abandon, age, complete, fresh_claim, lease_of, release, result},
};
use crate::store::{CallInfo, Claim, Store as _};

/// Whether there is such a call that is older than a minute, as both processes see it.
async fn is_noticed<H: Harness>(harness: &Arc<H>) -> bool {
    let [here, there] = [harness.store(), harness.elsewhere()].map(|store| async {
        let found = store.has_unsettled(MINUTE).await;
        found.expect("the store answers")
    });
    let (here, there) = (here.await, there.await);
    assert_eq!(here, there);
    here
}

async fn grow_old<H: Harness>(harness: &Arc<H>, claim: &Claim) {
    age(harness, claim, 2 * MINUTE).await;
}

pub async fn an_old_call_is_noticed_until_it_is_settled<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    assert!(!is_noticed(&harness).await, "the store is empty");
    let claim = fresh_claim();
    let lease = lease_of(store, &claim).await;
    assert!(!is_noticed(&harness).await, "the call is not old");
    grow_old(&harness, &claim).await;
    assert!(is_noticed(&harness).await, "it is in progress");
    abandon(store, &lease).await;
    assert!(is_noticed(&harness).await, "it is in doubt");
    let taken = store.take_over(&claim, lease.token).await;
    let taken = taken.expect("the store answers").expect("it is in doubt");
    assert!(is_noticed(&harness).await, "it is in progress again");
    complete(store, &taken, result("done")).await;
    assert!(!is_noticed(&harness).await, "it is completed");
}

pub async fn an_old_call_that_lapsed_is_noticed_as_long_as_it_is_kept<H: Harness>(harness: Arc<H>) {
    let mut claim = fresh_claim();
    claim.lease = MINUTE;
    lease_of(harness.store(), &claim).await;
    grow_old(&harness, &claim).await;
    assert!(is_noticed(&harness).await, "it is in doubt");
    age(&harness, &claim, claim.in_doubt_retention).await;
    assert!(!is_noticed(&harness).await, "it is forgotten");
}

pub async fn what_is_free_or_no_call_is_not_noticed<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let free = fresh_claim();
    let lease = lease_of(store, &free).await;
    release(store, &lease, 60 * MINUTE).await;
    grow_old(&harness, &free).await;
    assert!(!is_noticed(&harness).await, "its key is free");
    let mut own = fresh_claim();
    own.call = CallInfo::internal("test");
    lease_of(store, &own).await;
    grow_old(&harness, &own).await;
    assert!(
        !is_noticed(&harness).await,
        "it is a record of the engine's"
    );
}
