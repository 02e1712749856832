//! A transaction that its handler borrows or shares, and that is taken back when the handler has returned.

use std::sync::Arc;

use shuttle::{future::block_on, thread};

use super::{
    desk::Desk,
    lent::{Closed, Lent, NotLent},
};
use crate::schedules;

fn lent() -> (Arc<Desk>, Lent<Desk>) {
    let desk = Desk::new(0);
    let lent = Lent::new(Arc::clone(&desk), desk.transaction());
    (desk, lent)
}

/// Borrows, writes and gives back.
fn borrow(lent: &Lent<Desk>) -> Result<(), NotLent> {
    lent.borrow().map(|mut borrowed| borrowed.write())
}

/// The same with others that share it.
fn share(lent: &Lent<Desk>) -> Result<(), NotLent> {
    let shared = lent.share()?;
    block_on(shared.lock()).write();
    Ok(())
}

/// Two users, at the same time.
fn two(
    lent: &Lent<Desk>,
    use_it: fn(&Lent<Desk>) -> Result<(), NotLent>,
) -> [thread::JoinHandle<Result<(), NotLent>>; 2] {
    [(); 2].map(|()| {
        let lent = lent.clone();
        thread::spawn(move || use_it(&lent))
    })
}

#[test]
fn of_two_borrowers_one_has_the_transaction_and_it_comes_back() {
    schedules::all(|| {
        let (desk, lent) = lent();
        let mut had = two(&lent, borrow).map(|user| user.join().unwrap());
        had.sort_by_key(Result::is_err);
        assert_eq!(had, [Ok(()), Err(NotLent::BorrowedBefore)]);
        assert!(matches!(lent.close(), Closed::Returned(_)));
        assert_eq!(desk.open(), 0);
    });
}

#[test]
fn a_transaction_is_taken_back_or_known_to_be_held_and_then_ends_with_its_holder() {
    schedules::all(|| {
        let (desk, lent) = lent();
        let user = thread::spawn({
            let lent = lent.clone();
            move || borrow(&lent)
        });
        let closed = lent.close();
        // While the user may be giving it back.
        assert_eq!(lent.borrow().err(), Some(NotLent::Ended));
        let had = user.join().unwrap();
        let open = match closed {
            Closed::Untouched(_) => {
                assert_eq!(had, Err(NotLent::Ended));
                1
            }
            Closed::Returned(_) => {
                assert_eq!(had, Ok(()));
                1
            }
            Closed::StillHeld => {
                assert_eq!(had, Ok(()));
                0
            }
        };
        // Also while there is a clone of the cell.
        assert_eq!(desk.open(), open);
        drop(closed);
        assert_eq!(desk.open(), 0);
    });
}

#[test]
fn a_shared_transaction_is_taken_back_or_known_to_be_held_and_then_ends_with_its_holders() {
    schedules::all(|| {
        let (desk, lent) = lent();
        let users = two(&lent, share);
        let closed = lent.close();
        let had = users.map(|user| user.join().unwrap());
        let is_back = match closed {
            Closed::Untouched(_) => {
                assert_eq!(had, [Err(NotLent::Ended); 2]);
                true
            }
            Closed::Returned(_) => true,
            Closed::StillHeld => false,
        };
        assert!(is_back || had.contains(&Ok(())));
        assert!(
            had.iter()
                .all(|it| matches!(it, Ok(()) | Err(NotLent::Ended)))
        );
        assert_eq!(desk.open(), usize::from(is_back));
        drop(closed);
        assert_eq!(desk.open(), 0);
    });
}
