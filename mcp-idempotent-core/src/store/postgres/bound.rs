//! Every wait of ours has a bound. A connection that is silent for longer counts as lost.
//!
//! sqlx has no time limit for an answer, and sets no TCP keepalive. If a connection falls silent
//! without being closed (a firewall forgot it, a host froze), we would wait for its answer for as
//! long as the kernel keeps trying: many minutes, or for ever.

use std::{future::Future, io, time::Duration};

use tokio::time::{Instant, timeout};

/// Waits at most this long for an answer from the database.
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

/// Whether a connection fell silent. It is then closed and not asked again.
pub(super) fn is_silence(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(error) if error.kind() == io::ErrorKind::TimedOut)
}

/// This long from now, at most a year.
pub(super) fn from_now(duration: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    Instant::now() + duration.min(YEAR)
}
