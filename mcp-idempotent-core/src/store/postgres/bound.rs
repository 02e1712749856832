//! No wait of ours is without a bound. A connection that is silent for longer counts as lost.
//!
//! sqlx has no time limit for an answer, and sets no TCP keepalive. If a connection falls silent without
//! being closed (a firewall forgot it, a host froze), its answer would be waited for as long as the
//! kernel goes on: many minutes, or for ever.

use std::{future::Future, io, time::Duration};

use tokio::time::{Instant, timeout};

/// Waits for an answer of the database for at most this long.
pub(super) async fn within<T>(
    bound: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    timeout(bound, answer)
        .await
        .unwrap_or_else(|_| Err(silence(bound)))
}

pub(super) fn silence(bound: Duration) -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the database did not answer within {bound:?}"),
    ))
}

/// Whether a connection fell silent. Nothing more is heard on it, so it is closed and not asked again.
pub(super) fn is_silence(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}

/// This long from now. A duration without a practical end is a year.
pub(super) fn from_now(duration: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + duration.min(YEAR)
}
