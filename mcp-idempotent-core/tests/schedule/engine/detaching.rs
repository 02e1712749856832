//! Work that goes on if its caller goes away.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use shuttle::{
    future::{block_on, spawn, yield_now},
    thread,
};

use super::handler::DetachOnDrop;
use crate::{schedules, sync::oneshot};

#[test]
fn work_whose_caller_goes_away_at_any_point_is_done_once() {
    schedules::all(|| {
        let done = Arc::new(AtomicUsize::new(0));
        let (open, gate) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let caller = spawn(DetachOnDrop::new({
            let done = Arc::clone(&done);
            async move {
                gate.await.unwrap();
                yield_now().await;
                done.fetch_add(1, SeqCst);
                end.send(()).unwrap();
            }
        }));
        let opens = thread::spawn(move || open.send(()));
        caller.abort();
        block_on(ended).expect("the work is lost");
        assert!(opens.join().unwrap().is_ok());
        drop(block_on(caller));
        assert_eq!(done.load(SeqCst), 1);
    });
}
