//! Rules for a completion under a guard, which is a lease of another record.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    Harness, TransactionHarness,
    step::{
        MINUTE, abandon, age, assert_fenced, assert_result, assert_running, begin, begin_unclaimed,
        complete, completed, effects, end, fresh_claim, lease_of, record_of, release, result,
        write,
    },
};
use crate::store::{
    Claim, Completion, End, Ended, Lease, LeaseEnd, Store as _, TransactionStore as _,
};

fn under(guard: &Lease, mut completion: Completion) -> Completion {
    completion.guard = Some(guard.clone());
    completion
}

/// The ways to lose a guard.
const LOSSES: usize = 4;

async fn lose<H: Harness>(harness: &Arc<H>, loss: usize, claim: &Claim, guard: &Lease) {
    let store = harness.store();
    match loss {
        0 => release(store, guard, Duration::ZERO).await,
        1 => abandon(store, guard).await,
        2 => drop(complete(store, guard, result("by another")).await),
        _ => age(harness, claim, claim.lease + MINUTE).await,
    }
}

pub async fn a_lease_and_its_guard_are_completed_together<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let large = Bytes::from(vec![b'x'; 100_000]);
    for response in [Some(Bytes::from_static(b"done")), Some(large), None] {
        let (claim, other) = (fresh_claim(), fresh_claim());
        let (lease, guard) = (lease_of(store, &claim).await, lease_of(store, &other).await);
        let completion = under(&guard, Completion::new(response.clone(), MINUTE));
        let at = complete(store, &lease, completion).await;
        for record in [&claim, &other] {
            let (found, completed_at) = completed(harness.elsewhere(), record).await;
            assert!(found == response, "the bytes differ");
            assert_eq!(completed_at, at);
        }
        assert_fenced(&harness, &lease).await;
        assert_fenced(&harness, &guard).await;
    }
}

pub async fn a_lost_guard_lets_its_lease_complete_nothing<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for loss in 0..LOSSES {
        let mut claim = fresh_claim();
        claim.lease *= 4;
        let other = fresh_claim();
        let (lease, guard) = (lease_of(store, &claim).await, lease_of(store, &other).await);
        lose(&harness, loss, &other, &guard).await;
        let ended = store.complete(&lease, under(&guard, result("late"))).await;
        assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{loss}: {ended:?}");
        assert_running(store, &claim).await;
        if loss == 2 {
            assert_result(store, &other, "by another").await;
        }
        complete(store, &lease, result("without it")).await;
    }
}

pub async fn a_lost_lease_leaves_its_guard_as_it_was<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    let (claim, other) = (fresh_claim(), fresh_claim());
    let (lease, guard) = (lease_of(store, &claim).await, lease_of(store, &other).await);
    release(store, &lease, Duration::ZERO).await;
    let ended = store.complete(&lease, under(&guard, result("late"))).await;
    assert!(matches!(ended, Ok(LeaseEnd::Fenced)), "{ended:?}");
    assert!(record_of(store, &claim).await.is_none());
    assert_running(store, &other).await;
    complete(store, &guard, result("alone")).await;
}

/// A result that the call's record and the guard's keep for different times: one for an hour, the
/// other for ten minutes.
fn kept_apart(guard: &Lease, response: Option<Bytes>, guard_is_shorter: bool) -> Completion {
    let (long, short) = (60 * MINUTE, 10 * MINUTE);
    let mut completion = under(guard, Completion::new(response, short));
    completion.guard_retention = Some(long);
    if guard_is_shorter {
        completion.retention = long;
        completion.guard_retention = Some(short);
    }
    completion
}

async fn assert_kept_apart<H: Harness>(
    harness: &Arc<H>,
    claim: &Claim,
    other: &Claim,
    guard_is_shorter: bool,
) {
    let (shorter, longer) = if guard_is_shorter {
        (other, claim)
    } else {
        (claim, other)
    };
    for record in [shorter, longer] {
        age(harness, record, 9 * MINUTE).await;
        completed(harness.store(), record).await;
        age(harness, record, 2 * MINUTE).await;
    }
    assert!(record_of(harness.store(), shorter).await.is_none());
    lease_of(harness.store(), shorter).await;
    completed(harness.store(), longer).await;
    age(harness, longer, 50 * MINUTE).await;
    assert!(record_of(harness.store(), longer).await.is_none());
}

pub async fn a_lease_and_its_guard_are_each_kept_for_their_own_time<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for guard_is_shorter in [true, false] {
        let (claim, other) = (fresh_claim(), fresh_claim());
        let (lease, guard) = (lease_of(store, &claim).await, lease_of(store, &other).await);
        let response = Some(Bytes::from_static(b"done"));
        complete(
            store,
            &lease,
            kept_apart(&guard, response, guard_is_shorter),
        )
        .await;
        assert_kept_apart(&harness, &claim, &other, guard_is_shorter).await;
    }
}

pub async fn a_claim_that_keeps_no_doubt_is_free_when_its_lease_ends<H: Harness>(harness: Arc<H>) {
    let store = harness.store();
    for abandoned in [false, true] {
        let mut claim = fresh_claim();
        claim.in_doubt_retention = Duration::ZERO;
        let lease = lease_of(store, &claim).await;
        assert_running(harness.elsewhere(), &claim).await;
        if abandoned {
            abandon(store, &lease).await;
        } else {
            age(&harness, &claim, claim.lease + MINUTE).await;
        }
        assert!(record_of(store, &claim).await.is_none());
        let next = lease_of(store, &claim).await;
        assert_fenced(&harness, &lease).await;
        complete(store, &next, result("next")).await;
    }
}

/// The ends that record something, and whether the handler's writes are committed.
fn ends(guard: &Lease) -> [(End, bool); 4] {
    let large = Bytes::from(vec![b'x'; 100_000]);
    [
        (End::Commit(under(guard, result("done"))), true),
        (
            End::Commit(under(guard, Completion::new(Some(large), MINUTE))),
            true,
        ),
        (
            End::Commit(under(guard, Completion::new(None, MINUTE))),
            true,
        ),
        (End::RollBackAndRecord(under(guard, result("error"))), false),
    ]
}

/// The number of [`ends`].
const ENDS: usize = 4;

pub async fn a_record_and_its_guard_are_committed_together<H: TransactionHarness>(harness: Arc<H>) {
    for way in 0..ENDS {
        let (claim, other) = (fresh_claim(), fresh_claim());
        let guard = lease_of(harness.store(), &other).await;
        let (ends, commits) = ends(&guard).into_iter().nth(way).expect("a way");
        let before = effects(&harness).await;
        let mut transaction = begin(&harness, &claim).await;
        write(&harness, &mut transaction).await;
        assert_running(harness.elsewhere(), &other).await;
        end(&harness, transaction, Some(&claim), ends).await;
        assert_eq!(effects(&harness).await, before + u64::from(commits));
        let (recorded, _) = completed(harness.elsewhere(), &claim).await;
        let (guarded, _) = completed(harness.elsewhere(), &other).await;
        assert!(recorded == guarded, "the bytes differ");
        assert_fenced(&harness, &guard).await;
    }
}

pub async fn a_record_and_its_guard_are_each_kept_for_their_own_time<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    let small = Some(Bytes::from_static(b"done"));
    let large = Some(Bytes::from(vec![b'x'; 100_000]));
    for guard_is_shorter in [true, false] {
        for way in 0..4 {
            let (claim, other) = (fresh_claim(), fresh_claim());
            let guard = lease_of(store, &other).await;
            let response = if way == 1 { &large } else { &small }.clone();
            let completion = kept_apart(&guard, response, guard_is_shorter);
            if way == 3 {
                let lease = lease_of(store, &claim).await;
                let transaction = begin_unclaimed(&harness, &claim).await;
                end(
                    &harness,
                    transaction,
                    None,
                    End::Complete(lease, completion),
                )
                .await;
            } else {
                let ends = if way == 2 {
                    End::RollBackAndRecord(completion)
                } else {
                    End::Commit(completion)
                };
                let transaction = begin(&harness, &claim).await;
                end(&harness, transaction, Some(&claim), ends).await;
            }
            assert_kept_apart(&harness, &claim, &other, guard_is_shorter).await;
        }
    }
}

pub async fn a_lost_guard_commits_nothing_of_its_transaction<H: TransactionHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    for way in 0..ENDS {
        for loss in 0..LOSSES {
            let (claim, other) = (fresh_claim(), fresh_claim());
            let guard = lease_of(store, &other).await;
            lose(&harness, loss, &other, &guard).await;
            let (ends, _) = ends(&guard).into_iter().nth(way).expect("a way");
            let mut transaction = begin(&harness, &claim).await;
            write(&harness, &mut transaction).await;
            let ended = store.end(transaction, Some(&claim), ends).await;
            assert!(
                matches!(ended, Ended::Fenced | Ended::LostInProgress),
                "{way}, {loss}: {ended:?}"
            );
            assert_eq!(effects(&harness).await, 0, "{way}, {loss}");
            assert!(record_of(store, &claim).await.is_none(), "{way}, {loss}");
            let transaction = begin(&harness, &claim).await;
            end(&harness, transaction, Some(&claim), End::RollBack).await;
        }
    }
}

pub async fn a_lease_and_its_guard_are_completed_together_with_a_transaction<
    H: TransactionHarness,
>(
    harness: Arc<H>,
) {
    let store = harness.store();
    for loss in [None, Some(0), Some(1), Some(2)] {
        let (claim, other) = (fresh_claim(), fresh_claim());
        let (lease, guard) = (lease_of(store, &claim).await, lease_of(store, &other).await);
        if let Some(loss) = loss {
            lose(&harness, loss, &other, &guard).await;
        }
        let before = effects(&harness).await;
        let mut transaction = begin_unclaimed(&harness, &claim).await;
        write(&harness, &mut transaction).await;
        let both = End::Complete(lease, under(&guard, result("done")));
        let ended = store.end(transaction, None, both).await;
        if let Some(loss) = loss {
            assert!(matches!(ended, Ended::Fenced), "{loss}: {ended:?}");
            assert_eq!(effects(&harness).await, before);
            assert_running(store, &claim).await;
        } else {
            let Ended::AsAsked(at) = ended else {
                panic!("expected the end that was asked for, found {ended:?}");
            };
            assert_eq!(effects(&harness).await, before + 1);
            assert_result(store, &other, "done").await;
            assert_eq!(completed(store, &claim).await.1, at);
        }
    }
}
