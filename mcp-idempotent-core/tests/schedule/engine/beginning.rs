//! A transaction that a handler begins halfway through, while its attempt may end.

use std::sync::Arc;

use futures_util::FutureExt as _;
use mcp_idempotent_core::CallInfo;
use shuttle::{
    future::{self, block_on},
    thread,
};

use super::{
    desk::Desk,
    late_transaction::{BeginError, CompletionError, LateTransaction, Left},
};
use crate::{schedules, store::End};

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Begun {
    Had,
    Before,
    Elsewhere,
    TooLate,
    Failed,
}

/// Begins, writes and gives back.
async fn begin(late: &LateTransaction, desk: &Arc<Desk>) -> Begun {
    match late.begin(desk, &CallInfo::new("pay", None)).await {
        Ok(mut borrowed) => {
            borrowed.write();
            Begun::Had
        }
        Err(BeginError::BegunBefore) => Begun::Before,
        Err(BeginError::CompletedElsewhere) => Begun::Elsewhere,
        Err(BeginError::Ended) => Begun::TooLate,
        Err(BeginError::Store(_)) => Begun::Failed,
        Err(error) => panic!("{error}"),
    }
}

fn in_a_thread(late: &Arc<LateTransaction>, desk: &Arc<Desk>) -> thread::JoinHandle<Begun> {
    let (late, desk) = (Arc::clone(late), Arc::clone(desk));
    thread::spawn(move || block_on(begin(&late, &desk)))
}

/// Ends what its handler has left, if that is a transaction.
fn end(left: Left) -> bool {
    match left {
        Left::Transaction(transaction) => {
            block_on(transaction.end(End::RollBack));
            true
        }
        _ => false,
    }
}

#[test]
fn a_transaction_that_is_begun_while_its_attempt_ends_is_not_left_open() {
    for failing in [0, 1] {
        schedules::all(move || {
            let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(failing));
            let user = in_a_thread(&late, &desk);
            let left = late.close();
            let is_nothing = matches!(left, Left::Nothing);
            let ended = end(left);
            let had = user.join().unwrap();
            assert!(!ended || had == Begun::Had);
            assert!(
                !is_nothing || had != Begun::Had,
                "nobody ends what it writes"
            );
            assert_eq!(desk.ended(), usize::from(ended));
            assert_eq!(desk.open(), 0);
            assert_eq!(block_on(begin(&late, &desk)), Begun::TooLate);
        });
    }
}

#[test]
fn of_two_that_begin_one_has_the_transaction() {
    schedules::all(|| {
        let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(0));
        let mut had = [(); 2]
            .map(|()| in_a_thread(&late, &desk))
            .map(|it| it.join().unwrap());
        had.sort();
        assert_eq!(had, [Begun::Had, Begun::Before]);
        assert!(end(late.close()));
        assert_eq!((desk.ended(), desk.open()), (1, 0));
    });
}

#[test]
fn who_begins_after_a_failure_has_the_transaction() {
    schedules::all(|| {
        let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(1));
        let mut had = [(); 2]
            .map(|()| in_a_thread(&late, &desk))
            .map(|it| it.join().unwrap());
        had.sort();
        assert!(matches!(
            had,
            [Begun::Had, Begun::Failed] | [Begun::Before, Begun::Failed]
        ));
        if had[0] == Begun::Before {
            assert_eq!(block_on(begin(&late, &desk)), Begun::Had);
        }
        assert!(end(late.close()));
        assert_eq!((desk.ended(), desk.open()), (1, 0));
    });
}

#[test]
fn a_beginning_that_is_dropped_at_any_point_leaves_nothing_open_and_can_be_repeated() {
    schedules::all(|| {
        let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(0));
        let user = future::spawn({
            let (late, desk) = (Arc::clone(&late), Arc::clone(&desk));
            async move { begin(&late, &desk).await }
        });
        user.abort();
        let again = match block_on(user) {
            Ok(had) => {
                assert_eq!(had, Begun::Had);
                Begun::Before
            }
            Err(_) => Begun::Had,
        };
        assert_eq!(block_on(begin(&late, &desk)), again);
        assert!(end(late.close()));
        assert_eq!((desk.ended(), desk.open()), (1, 0));
    });
}

#[test]
fn an_attempt_is_completed_elsewhere_or_by_its_own_transaction_and_never_by_both() {
    schedules::all(|| {
        let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(0));
        let user = in_a_thread(&late, &desk);
        let elsewhere = late.complete_elsewhere();
        let had = user.join().unwrap();
        match elsewhere {
            Ok(()) => assert_eq!(had, Begun::Elsewhere),
            Err(CompletionError::TransactionBegun) => assert_eq!(had, Begun::Had),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(end(late.close()), had == Begun::Had);
        assert_eq!(desk.open(), 0);
    });
}

#[test]
fn a_handler_is_told_when_the_session_of_what_it_begins_is_over() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.unwrap();
    // For the time that it has left, which is not waited for.
    let _inside = runtime.enter();
    schedules::all(|| {
        let (late, desk) = (Arc::<LateTransaction>::default(), Desk::new(0));
        let watching = thread::spawn({
            let late = Arc::clone(&late);
            move || {
                let told = std::pin::pin!(late.told_to_stop());
                let over = std::pin::pin!(late.over());
                block_on(futures_util::future::select(told, over).map(drop));
            }
        });
        assert_eq!(block_on(begin(&late, &desk)), Begun::Had);
        watching.join().unwrap();
    });
}
