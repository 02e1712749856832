//! Futures may be dropped at any point. The connection's next user must not notice.

use std::sync::Arc;

use super::{
    SqlHarness,
    polls::drop_at,
    step::{
        MINUTE, assert_result, begin, begin_unclaimed, begin_when_free, call, effects, fresh_claim,
        lease_of, record_of, result, write,
    },
};
use crate::store::{Claimed, End, LeaseEnd, Store as _, TransactionStore as _};

/// A future that finished this many times in a row needs no more polls.
const IN_A_ROW: usize = 3;
/// The most rounds until a future has been dropped, and has finished.
const POLLS: usize = 200;
/// The most rounds with a future whose effect may or may not happen.
const TURNS: usize = 80;

/// Runs `round` with more and more polls, until it says that its future finished. A store whose
/// work is done by another thread may have finished it at the first poll, so a run without a drop
/// starts again.
async fn at_any_point(mut round: impl AsyncFnMut(usize) -> bool) {
    let (mut polls, mut dropped, mut in_a_row) = (0, 0, 0);
    for _ in 0..POLLS {
        if round(polls).await {
            in_a_row += 1;
        } else {
            (dropped, in_a_row) = (dropped + 1, 0);
        }
        polls += 1;
        if in_a_row == IN_A_ROW {
            if dropped > 0 {
                return;
            }
            (polls, in_a_row) = (0, 0);
        }
    }
    panic!("it was never dropped, or never came through");
}

/// The next user of the pool writes, and everybody sees it.
async fn next_user_is_served<H: SqlHarness>(harness: &Arc<H>) {
    let before = effects(harness).await;
    let written = harness.write_through_the_pool().await;
    written.expect("the next user is served");
    assert!(
        effects(harness).await > before,
        "the write is in somebody's open transaction"
    );
}

pub async fn a_begin_dropped_at_any_point_leaves_nothing_open<H: SqlHarness>(harness: Arc<H>) {
    at_any_point(async |polls| {
        let claim = fresh_claim();
        let begin = harness.store().begin(&claim.call, Some(&claim));
        let begun = drop_at(polls, begin).await;
        let came_through = begun.is_some();
        drop(begun);
        next_user_is_served(&harness).await;
        let freed = begin_when_free::<H>(harness.store(), &claim).await;
        assert!(freed.is_ok(), "the key is free");
        came_through
    })
    .await;
}

pub async fn a_replay_dropped_at_any_point_leaves_nothing_open<H: SqlHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    call(&harness, &claim, result("done")).await;
    at_any_point(async |polls| {
        let begin = harness.store().begin(&claim.call, Some(&claim));
        let begun = drop_at(polls, begin).await;
        next_user_is_served(&harness).await;
        assert!(matches!(begun, None | Some(Ok(Claimed::Found(_)))));
        begun.is_some()
    })
    .await;
}

pub async fn an_end_dropped_at_any_point_leaves_both_or_neither<H: SqlHarness>(harness: Arc<H>) {
    for commits in [true, false] {
        either(async |polls| {
            let claim = fresh_claim();
            let mut transaction = begin(&harness, &claim).await;
            write(&harness, &mut transaction).await;
            let before = effects(&harness).await;
            let end = if commits {
                End::Commit(result("done"))
            } else {
                End::RollBackAndRecord(result("done"))
            };
            let end = harness.store().end(transaction, Some(&claim), end);
            let came_through = drop_at(polls, end).await.is_some();
            next_user_is_served(&harness).await;
            let freed = begin_when_free::<H>(harness.elsewhere(), &claim).await;
            let recorded = freed.is_err();
            drop(freed);
            let happened = effects(&harness).await - before - 1;
            assert_eq!(happened, u64::from(recorded && commits), "{polls}");
            (came_through, recorded)
        })
        .await;
    }
}

pub async fn a_completion_dropped_at_any_point_leaves_both_or_neither<H: SqlHarness>(
    harness: Arc<H>,
) {
    either(async |polls| {
        let claim = fresh_claim();
        let lease = lease_of(harness.store(), &claim).await;
        let mut transaction = begin_unclaimed(&harness, &claim).await;
        write(&harness, &mut transaction).await;
        let before = effects(&harness).await;
        let complete = End::Complete(lease.clone(), result("done"));
        let end = harness.store().end(transaction, None, complete);
        let came_through = drop_at(polls, end).await.is_some();
        // This fences anything that is still on its way.
        let abandoned = harness.elsewhere().abandon(&lease).await;
        let recorded = matches!(abandoned, Ok(LeaseEnd::Fenced));
        assert!(abandoned.is_ok(), "{abandoned:?}");
        if recorded {
            assert_result(harness.store(), &claim, "done").await;
        }
        assert_eq!(effects(&harness).await - before, u64::from(recorded));
        next_user_is_served(&harness).await;
        (came_through, recorded)
    })
    .await;
}

/// Runs `round` with different numbers of polls, until all three cases were seen: an end that
/// finished, one that was dropped before it took effect, and one that was dropped after. The poll
/// at which a commit is sent depends on the driver's speed. It may be the first.
async fn either(mut round: impl AsyncFnMut(usize) -> (bool, bool)) {
    let (mut through, mut kept, mut lost) = (0, 0, 0);
    for turn in 0..TURNS {
        match round(turn % 8).await {
            (true, true) => through += 1,
            (true, false) => panic!("it came through and recorded nothing"),
            (false, true) => kept += 1,
            (false, false) => lost += 1,
        }
        if through > 0 && kept > 0 && lost > 0 {
            return;
        }
    }
    assert!(through > 0 && kept + lost > 0, "{through}, {kept}, {lost}");
}

pub async fn a_lease_method_dropped_at_any_point_leaves_nothing_open<H: SqlHarness>(
    harness: Arc<H>,
) {
    let store = harness.store();
    at_any_point(async |polls| {
        let claim = fresh_claim();
        let claimed = drop_at(polls, store.claim(&claim)).await;
        next_user_is_served(&harness).await;
        // The claim may or may not have been made, but the store must be able to tell.
        record_of(store, &claim).await;
        let again = store.claim(&claim).await.expect("the store answers");
        assert!(!matches!(again, Claimed::Conflict), "{again:?}");
        claimed.is_some()
    })
    .await;
    for method in ["renew", "complete", "release", "abandon"] {
        at_any_point(async |polls| {
            let lease = lease_of(store, &fresh_claim()).await;
            let ended = match method {
                "renew" => drop_at(polls, store.renew(&lease, MINUTE)).await,
                "complete" => drop_at(polls, store.complete(&lease, result("done"))).await,
                "release" => drop_at(polls, store.release(&lease, MINUTE)).await,
                _ => drop_at(polls, store.abandon(&lease)).await,
            };
            next_user_is_served(&harness).await;
            assert!(
                matches!(ended, None | Some(Ok(LeaseEnd::Done(_)))),
                "{method}: {ended:?}"
            );
            ended.is_some()
        })
        .await;
    }
}

pub async fn a_dropped_transaction_leaves_the_next_user_alone<H: SqlHarness>(harness: Arc<H>) {
    let claim = fresh_claim();
    for pending in [None, Some(0), Some(1), Some(2), Some(3)] {
        let before = effects(&harness).await;
        let mut transaction = begin(&harness, &claim).await;
        match pending {
            None => write(&harness, &mut transaction).await,
            // Halfway through a statement.
            Some(pending) => drop(drop_at(pending, harness.write(&mut transaction)).await),
        }
        drop(transaction);
        next_user_is_served(&harness).await;
        assert_eq!(effects(&harness).await, before + 1);
        let freed = begin_when_free::<H>(harness.store(), &claim).await;
        assert!(freed.is_ok(), "the key is free");
        drop(freed);
        next_user_is_served(&harness).await;
    }
}
