//! What the server's clock shows, without asking it each time.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::record::Timestamp;

/// After this long it is asked again. Two clocks drift apart by less than a second in that time.
const ASKED_EVERY: Duration = Duration::from_secs(60);

/// The last time that the server told, and what has passed since then by this process's own steady
/// clock. It is only for show: callers that joined a call are told with it when that call was completed.
/// The record itself has the server's time.
#[derive(Debug, Default)]
pub(super) struct ServerClock(Mutex<Option<(Instant, Timestamp)>>);

impl ServerClock {
    pub(super) fn has_told(&self, at: Timestamp) {
        *self.lock() = Some((Instant::now(), at));
    }

    /// `None` if the server has to be asked.
    pub(super) fn now(&self) -> Option<Timestamp> {
        let (told, at) = (*self.lock())?;
        let passed = told.elapsed();
        let micros = i64::try_from(passed.as_micros()).ok()?;
        let now = at.as_micros().checked_add(micros)?;
        (passed < ASKED_EVERY).then_some(Timestamp::from_micros(now))
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_goes_on_from_what_the_server_told_and_asks_again_after_a_while() {
        let clock = ServerClock::default();
        assert_eq!(clock.now(), None);
        clock.has_told(Timestamp::from_micros(1_000_000));
        let now = clock.now().unwrap().as_micros();
        assert!((1_000_000..2_000_000).contains(&now), "{now}");
        let long_ago = Instant::now().checked_sub(ASKED_EVERY).unwrap();
        *clock.lock() = Some((long_ago, Timestamp::from_micros(1_000_000)));
        assert_eq!(clock.now(), None);
    }
}
