//! Plays faults around one call to a payment API, and counts at the API what came of them.
//!
//! The API is a real HTTP server, the MCP servers are real processes (this program again, as
//! `payments`) on SQLite or Postgres, the client is rmcp's. Three pairings of a tool and an API:
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
use lexopt::{
    Arg::{Long, Short},
    ValueExt as _,
};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    fault::{Fault, Pairing},
    report::Report,
};
use crate::{
    command_line::{Stop, log_to_stderr},
    database::Database,
    payments::options::Store,
};

/// What `--help` prints.
pub const USAGE: &str = "\
What becomes of a payment at a payment API, under faults of the API and of the server that calls it.

Usage: cargo run --example external_api -- [OPTIONS]

Options:
  --store sqlite          run on SQLite files in a temporary directory [default]
  --store postgres://URL  run on this database, in schemas that are removed at the end
  -h, --help              print this

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
pub async fn main(arguments: lexopt::Parser) -> Result<(), Stop> {
    let postgres = parse(arguments)?;
    // That servers go away is no news here.
    log_to_stderr("warn,rmcp=off");
    let report = tokio::select! {
        report = run(postgres) => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    }?;
    report.print().context("cannot print the report")?;
    report.verdict()?;
    Ok(())
}

/// The URL of a Postgres database, if it is to be one.
fn parse(mut arguments: lexopt::Parser) -> Result<Option<String>, Stop> {
    let mut postgres = None;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("store") => {
                let store = arguments.value()?.string()?;
                postgres = match Store::parse(&store) {
                    Ok(Store::Postgres(url)) => Some(url),
                    _ if store == "sqlite" => None,
                    _ => {
                        return Err(Stop::Usage(format!(
                            "--store {store:?} is neither sqlite nor postgres://URL, which outlive \
                             a killed server"
                        )));
                    }
                };
            }
            Long("help") | Short('h') => return Err(Stop::Help),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(postgres)
}

async fn run(postgres: Option<String>) -> anyhow::Result<Report> {
    let directory = tempfile::Builder::new()
        .prefix("external_api")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    // Dropped after a failure, it ends the other faults and their servers.
    let mut running = JoinSet::new();
    for fault in Fault::ALL {
        for pairing in Pairing::ALL {
            let name = format!("{fault:?}_{pairing:?}").to_lowercase();
            let place = directory.path().join(&name);
            let database = match &postgres {
                Some(url) => Database::postgres(url.clone(), &name),
                None => Database::sqlite(),
            };
            let permits = Arc::clone(&permits);
            running.spawn(async move {
                let _permit = permits.acquire_owned().await?;
                let doing = || format!("{} ({pairing:?})", fault.label());
                fault
                    .play(pairing, place, database)
                    .await
                    .with_context(doing)
            });
        }
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome??);
    }
    Ok(Report::new(outcomes))
}
