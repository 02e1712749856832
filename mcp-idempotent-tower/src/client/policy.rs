//! How often, how long and how far apart a call is repeated.

use std::time::Duration;

/// The bounds of a retried call.
///
/// | | Default |
/// | --- | --- |
/// | attempts | 5 |
/// | time for all of them, with the pauses | 2 minutes |
/// | time for one, its connection included | 45 seconds |
/// | first pause; doubled after each attempt, up to | 200 ms; 10 seconds |
///
/// The time for one attempt should be longer than the server lets a duplicate wait for the first
/// (30 seconds by default): otherwise an attempt gives up just before its answer.
///
/// Each pause is a random time between half and all of its length, so that clients that failed
/// together do not come back together. If the server says how long to wait (`retryAfterMs`, or the
/// header `Retry-After`), the client waits exactly that long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    pub(super) attempts: u32,
    pub(super) total: Duration,
    pub(super) attempt: Duration,
    pub(super) first_pause: Duration,
    pub(super) longest_pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 5,
            total: Duration::from_secs(120),
            attempt: Duration::from_secs(45),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
        }
    }
}

impl RetryPolicy {
    /// The defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The most attempts, including the first; 0 counts as 1.
    #[must_use]
    pub const fn with_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// How long all attempts and pauses may take together.
    #[must_use]
    pub const fn with_total_timeout(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// How long one attempt may take. After that the server is told that it is cancelled, and the
    /// attempt counts as lost.
    #[must_use]
    pub const fn with_attempt_timeout(mut self, attempt: Duration) -> Self {
        self.attempt = attempt;
        self
    }

    /// The pause after the first attempt, and the longest one.
    #[must_use]
    pub const fn with_pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first_pause = first;
        self.longest_pause = longest;
        self
    }

    /// The pause after this attempt (the first is 1).
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        let doublings = 2_u32.saturating_pow(attempt.saturating_sub(1));
        let longest = self.first_pause.saturating_mul(doublings);
        let half = longest.min(self.longest_pause) / 2;
        half + half.mul_f64(random_fraction())
    }
}

/// From 0 to 1.
fn random_fraction() -> f64 {
    let [byte, ..] = uuid::Uuid::new_v4().into_bytes();
    f64::from(byte) / f64::from(u8::MAX)
}
