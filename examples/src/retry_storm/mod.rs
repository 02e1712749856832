//! Sends the same calls to `charge_card_unprotected` and to `charge_card`, as clients do that
//! repeat, time out or lose their server, and shows what became of them side by side.
//!
//! The servers are real processes (this program again, as `payments`), the client is rmcp's, over
//! stdio and Streamable HTTP. Executions are counted in the server's ledger, effects in its
//! database, after the fact.

pub mod call;
pub mod case;
pub mod latency;
pub mod report;
pub mod server;

use std::sync::Arc;

use anyhow::Context as _;
use lexopt::{
    Arg::{Long, Short},
    ValueExt as _,
};
use tokio::task::JoinSet;

use self::{
    case::{Case, Side},
    report::Report,
};
use crate::{
    command_line::{Stop, log_to_stderr},
    database::Database,
    payments::options::Store,
};

/// What `--help` prints.
pub const USAGE: &str = "\
What retries do to an MCP tool, with and without #[idempotent].

Usage: cargo run --example retry_storm -- [OPTIONS]

Options:
  --store sqlite          run on SQLite files in a temporary directory [default]
  --store postgres://URL  run on this database, in a schema that is removed at the end
  -h, --help              print this

Exits with 1 if the protected tool ever charged a card other than once, or if the unprotected one
failed to show why that matters.
";

/// Runs every case on both sides, and prints the report.
///
/// # Errors
///
/// The arguments make no sense, a server cannot be started, or what happened is not what has to
/// happen.
pub async fn main(arguments: lexopt::Parser) -> Result<(), Stop> {
    let database = Arc::new(parse(arguments)?);
    // That servers go away is no news here.
    log_to_stderr("warn,rmcp=off");
    let report = tokio::select! {
        report = run(&database) => report,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
    };
    // Also after a failure.
    let removed = database.remove().await;
    let report = report?;
    removed?;
    report.print().context("cannot print the report")?;
    report.verdict()?;
    Ok(())
}

fn parse(mut arguments: lexopt::Parser) -> Result<Database, Stop> {
    let mut database = Database::sqlite();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("store") => {
                let store = arguments.value()?.string()?;
                database = match Store::parse(&store) {
                    Ok(Store::Postgres(url)) => Database::postgres(url, "retry_storm"),
                    _ if store == "sqlite" => Database::sqlite(),
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
    Ok(database)
}

async fn run(database: &Arc<Database>) -> anyhow::Result<Report> {
    let directory = tempfile::Builder::new()
        .prefix("retry_storm")
        .tempdir()
        .context("cannot make a temporary directory")?;
    database.prepare().await?;
    // Dropped after a failure, it ends the other cases and their servers.
    let mut running = JoinSet::new();
    for case in Case::ALL {
        for side in [Side::Unprotected, Side::Protected] {
            let site = server::Site::new(directory.path(), case.letter(), side, database)?;
            running.spawn(async move {
                let doing = || format!("{} ({})", case.label(), side.tool());
                case.run(side, site).await.with_context(doing)
            });
        }
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = running.join_next().await {
        outcomes.push(outcome??);
    }
    // Afterwards, when nothing else runs.
    let site = server::Site::new(directory.path(), 'z', Side::Protected, database)?;
    let latency = latency::measure(site)
        .await
        .context("measuring the latency")?;
    Ok(Report::new(database.name(), outcomes, latency))
}
