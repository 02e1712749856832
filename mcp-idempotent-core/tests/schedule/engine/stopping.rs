//! Telling a handler to stop.

use shuttle::{future::block_on, thread};

use super::handler::Stop;
use crate::schedules;

#[test]
fn whoever_listens_is_told_to_stop() {
    schedules::all(|| {
        let stop = Stop::default();
        let listeners = [(); 2].map(|()| {
            let stop = stop.clone();
            thread::spawn(move || block_on(stop.told()))
        });
        stop.tell();
        for listener in listeners {
            listener.join().unwrap();
        }
        block_on(stop.told());
    });
}
