//! Plays faults around one call to a payment API, and counts at the API what came of them.
//!
//! The API is a real HTTP server, the MCP servers are real processes (this program again, as
//! `payments`) on SQLite, the client is rmcp's. Three pairings of a tool and an API:
//!
//! - `pay_invoice` (`on_doubt = rerun`) and an API that recognises a key: one charge, and the client
//!   gets its result, whatever happens;
//! - the same tool and an API that takes no notice of keys: a repeat is a second charge;
//! - `send_receipt` (`on_doubt = fail`) and that API: never a second call; what became of the first
//!   one, somebody has to find out.

pub mod api;
pub mod call;
pub mod fault;
pub mod report;

use std::sync::Arc;

use anyhow::Context as _;
use lexopt::Arg::{Long, Short};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    fault::{Fault, Pairing},
    report::Report,
};
use crate::command_line::{Stop, log_to_stderr};

/// What `--help` prints.
pub const USAGE: &str = "\
What becomes of a payment at a payment API, under faults of the API and of the server that calls it.

Usage: cargo run --example external_api

Options:
  -h, --help  print this

Exits with 1 if an API that recognises idempotency keys ever charged other than once, if the tool
that does not run again ever made a second call, or if an API without keys failed to show why keys
matter.
";

/// So many faults are played at once: each has one or two servers.
const AT_ONCE: usize = 6;

/// Plays every fault with every pairing, and prints the report.
///
/// # Errors
///
/// The arguments make no sense, a server cannot be started, or what happened is not what has to
/// happen.
pub async fn main(mut arguments: lexopt::Parser) -> Result<(), Stop> {
    if let Some(argument) = arguments.next()? {
        return Err(match argument {
            Long("help") | Short('h') => Stop::Help,
            other => other.unexpected().into(),
        });
    }
    // That servers go away is no news here.
    log_to_stderr("warn,rmcp=off");
    let report = tokio::select! {
        report = run() => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    }?;
    report.print().context("cannot print the report")?;
    report.verdict()?;
    Ok(())
}

async fn run() -> anyhow::Result<Report> {
    let directory = tempfile::Builder::new()
        .prefix("external_api")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    // Dropped after a failure, it ends the other faults and their servers.
    let mut running = JoinSet::new();
    for fault in Fault::ALL {
        for pairing in Pairing::ALL {
            let place = directory.path().join(format!("{fault:?}-{pairing:?}"));
            let permits = Arc::clone(&permits);
            running.spawn(async move {
                let _permit = permits.acquire_owned().await?;
                let doing = || format!("{} ({pairing:?})", fault.label());
                fault.play(pairing, place).await.with_context(doing)
            });
        }
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome??);
    }
    Ok(Report::new(outcomes))
}
