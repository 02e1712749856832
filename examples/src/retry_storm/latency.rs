//! What the attribute adds to a first call.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::Instant;

use super::{
    call::{Call, Seen},
    case::Side,
    server::{Site, Start},
};

/// Medians over interleaved calls.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Latency {
    /// Calls of each kind.
    pub rounds: usize,
    /// A first call of the protected tool.
    pub protected: Duration,
    /// The same work in a bare transaction.
    pub bare: Duration,
    /// The same again: what differs from `bare` is noise.
    pub bare_again: Duration,
}

const ROUNDS: usize = 300;
const WARM_UP: usize = 20;
const LONGEST: Duration = Duration::from_secs(3);

/// Calls both tools in turn, one call at a time.
///
/// # Errors
///
/// The server does not start, or a call fails.
pub async fn measure(site: Site) -> anyhow::Result<Latency> {
    let start = Start {
        no_ledger: true,
        ..Start::default()
    };
    let server = site.start(start).await?;
    let peer = server.peer();
    // Protected, bare, and bare again.
    let kinds = [Side::Protected, Side::Unprotected, Side::Unprotected];
    let mut taken: [Vec<Duration>; 3] = Default::default();
    let began = Instant::now();
    for round in 0..ROUNDS + WARM_UP {
        if began.elapsed() > LONGEST && round > WARM_UP {
            break;
        }
        for turn in 0..kinds.len() {
            // Each kind is first, second and last equally often.
            let kind = (round + turn) % kinds.len();
            let side = kinds[kind];
            let call = Call::new(side.tool(), site.customer(), format!("{round}-{kind}"));
            let sent = Instant::now();
            let seen = call.send(&peer).await?;
            let took = sent.elapsed();
            ensure!(
                matches!(seen, Seen::Receipt(_)),
                "a first call was answered with {seen:?}"
            );
            if round >= WARM_UP {
                taken[kind].push(took);
            }
        }
    }
    server.stop().await?;
    let rounds = taken[0].len();
    let [protected, bare, bare_again] = taken.map(median);
    Ok(Latency {
        rounds,
        protected,
        bare,
        bare_again,
    })
}

fn median(mut taken: Vec<Duration>) -> Duration {
    taken.sort_unstable();
    taken.get(taken.len() / 2).copied().unwrap_or_default()
}
