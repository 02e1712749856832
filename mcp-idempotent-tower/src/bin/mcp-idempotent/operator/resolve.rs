//! `records resolve` and `records release`: says what became of a call.

use std::{io::Read as _, path::PathBuf, time::Duration};

use clap::Args;
use mcp_idempotent_tower::{
    Audit, Idempotency, OperatorStore, Resolution, Resolved, Store,
    core::{Engine, store::Completion},
};
use rmcp::model::CallToolResult;
use serde_json::json;

use super::{
    Ended, Failure, print,
    store::{OneRecord, with_store},
};

pub(super) const EXAMPLES: &str = "\
Examples:
  mcp-idempotent records resolve ID --not-committed --who ann --why 'no such payment at the provider'
  mcp-idempotent records resolve ID --committed --result receipt.json --who ann --why 'payment 4711'

Without --result a retry is told that the call took effect, and that its result is not available.";

#[derive(Debug, Args)]
pub(crate) struct Resolve {
    #[command(flatten)]
    record: OneRecord,

    #[command(flatten)]
    found: Found,

    /// The result for a retry: a file with a tool's result as JSON (`{"content": […]}`), or - for
    /// standard input
    #[arg(long, value_name = "FILE", requires = "committed")]
    result: Option<PathBuf>,

    /// How long a retry gets the result
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = humantime::parse_duration)]
    keep: Duration,

    #[command(flatten)]
    audit: AuditOptions,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Found {
    /// The call took effect
    #[arg(long)]
    committed: bool,

    /// The call took no effect, and never will. A retry runs, with a new downstream key
    #[arg(long)]
    not_committed: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    #[command(flatten)]
    record: OneRecord,

    #[command(flatten)]
    audit: AuditOptions,
}

#[derive(Debug, Args)]
struct AuditOptions {
    /// Who says so; kept in the record
    #[arg(long, value_name = "NAME")]
    who: String,

    /// Why it is so; kept in the record
    #[arg(long, value_name = "REASON")]
    why: String,

    /// Only if the record still has this token, as `records show` showed it [default: the one it
    /// has now]
    #[arg(long, value_name = "N")]
    token: Option<i64>,
}

impl Resolve {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        let resolution = if self.found.committed {
            Resolution::Committed(self.completion()?)
        } else {
            Resolution::NotCommitted
        };
        resolve(&self.record, &self.audit, &resolution).await
    }

    fn completion(&self) -> Result<Completion, Failure> {
        let Some(file) = &self.result else {
            return Ok(Completion::new(None, self.keep));
        };
        let mut text = String::new();
        if file.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text)?;
        } else {
            text = std::fs::read_to_string(file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let result: CallToolResult = serde_json::from_str(&text)
            .map_err(|error| format!("--result is not the result of a tool: {error}"))?;
        let encoder = Idempotency::for_stdio("operator", mcp_idempotent_tower::MemoryStore::new())?;
        match encoder.committed_with(result) {
            Ok(Resolution::Committed(mut completion)) => {
                completion.retention = self.keep;
                Ok(completion)
            }
            Ok(_) => Err("--result cannot be kept".into()),
            Err(error) => Err(format!("--result cannot be kept: {}", error.message).into()),
        }
    }
}

impl Release {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        resolve(&self.record, &self.audit, &Resolution::Release).await
    }
}

async fn resolve(
    record: &OneRecord,
    audit: &AuditOptions,
    resolution: &Resolution,
) -> Result<Ended, Failure> {
    let opened = record.store.open().await?;
    with_store!(opened, store => resolve_in(store, record, audit, resolution).await)
}

async fn resolve_in<S: OperatorStore + Store>(
    store: S,
    record: &OneRecord,
    options: &AuditOptions,
    resolution: &Resolution,
) -> Result<Ended, Failure> {
    let audit = Audit::new(&*options.who, &*options.why)?;
    let engine = Engine::new("", store);
    let Some(info) = engine.show(record.id).await? else {
        print::line("there is no record with this id")?;
        return Ok(Ended::NotFound);
    };
    let token = options.token.unwrap_or(info.token);
    let resolved = engine.resolve(record.id, token, resolution, &audit).await?;
    let (ended, said) = match resolved {
        Resolved::Done(_) => (Ended::Done, "resolved"),
        Resolved::Changed => (Ended::Changed, "changed"),
        Resolved::NotFound => (Ended::NotFound, "not_found"),
    };
    if record.store.json {
        let answer =
            json!({"id": record.id.to_string(), "outcome": said, "as": resolution.kind().as_str()});
        print::line(format_args!("{answer:#}"))?;
        return Ok(ended);
    }
    print::line(match (ended, resolution) {
        (Ended::Done, Resolution::Committed(_)) => {
            "resolved: a retry is told that the call took effect"
        }
        (Ended::Done, Resolution::NotCommitted) => {
            "resolved: a retry runs, with a new downstream key"
        }
        (Ended::Done, Resolution::Release) => {
            "released: a retry runs, with the same downstream key"
        }
        (Ended::NotFound, _) => "there is no record with this id",
        _ => {
            "nothing was changed: the record is neither in doubt nor in progress under this token; look again with `records show`"
        }
    })?;
    Ok(ended)
}
