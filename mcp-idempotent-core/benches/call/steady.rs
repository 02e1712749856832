//! A time that other programs hardly change.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// The time of `iterations` calls, by the median of short series. Where the whole is timed at once,
/// what other programs take of the core is in it; most series are too short to be interrupted.
pub(crate) fn steady<T>(iterations: u64, mut call: impl FnMut() -> T) -> Duration {
    const SERIES: u32 = 16;
    let iterations = u32::try_from(iterations).expect("few iterations");
    let mut times = Vec::new();
    for _ in 0..iterations.div_ceil(SERIES) {
        let start = Instant::now();
        for _ in 0..SERIES {
            drop(black_box(call()));
        }
        times.push(start.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2] * iterations / SERIES
}
