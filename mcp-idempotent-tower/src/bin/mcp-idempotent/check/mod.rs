//! `check`: whether a tool of any MCP server runs once per key, under faults.

mod count;
mod http;
mod process;

use std::{error::Error, ffi::OsString, io::Write as _, time::Duration};

use ::http::{HeaderName, HeaderValue, Uri};
use clap::{ArgAction, Args};
use mcp_idempotent_tower::testing::{Check as Checked, CheckErrorKind, Door};
use serde_json::Value;

use self::{count::Count, http::Http, process::Process};

const ABOUT: &str = "\
Checks that a tool of any MCP server runs once per key, under faults.

Calls a tool of an MCP server, in any language, over stdio or HTTP. It repeats calls, makes them at \
the same time, cancels them, drops connections and kills the server; and it counts what the tool did. \
A tool that is protected has one effect per idempotency key, and every caller gets the same result.

THE TOOL REALLY ACTS, some thirty times. Use a test account and a test database, and let nobody else \
use them meanwhile.";

const NOTES: &str = "\
Examples:
  mcp-idempotent check --tool charge_card --arguments '{\"cents\": 4200}' \\
      --count-sql 'SELECT count(*) FROM charges' --database sqlite://billing.db -- my-server
  mcp-idempotent check --tool send --arguments '{\"to\": \"ann\", \"note\": \"{unique}\"}' \\
      --count-command 'wc -l < sent.log' --url http://127.0.0.1:3001/mcp \\
      --header 'authorization: Bearer ANN' --other-header 'authorization: Bearer BOB'

Over stdio each new connection is a new process, so a server must keep its records on disk to pass.

Exit codes:
  0  nothing is wrong
  1  there are findings
  2  wrong options, or the check could not be made: no server, no such tool, nothing to count";

/// Checks that a tool of any MCP server runs once per key, under faults
#[derive(Debug, Args)]
#[command(
    long_about = ABOUT,
    after_help = NOTES,
    override_usage = "mcp-idempotent check [OPTIONS] --tool NAME -- COMMAND [ARGS]...\n       mcp-idempotent check [OPTIONS] --tool NAME --url URL"
)]
pub(crate) struct Check {
    /// The tool to call
    #[arg(long, value_name = "NAME")]
    tool: String,

    /// The arguments of a call that succeeds. `{unique}` in a text becomes another text for each
    /// operation
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = object)]
    arguments: Value,

    /// The arguments of another call [default: the first text or number is changed]
    #[arg(long, value_name = "JSON", value_parser = object)]
    other_arguments: Option<Value>,

    /// Arguments with which the tool fails, best after it has acted. May be given several times
    #[arg(long, value_name = "JSON", value_parser = object, action = ArgAction::Append)]
    failing_arguments: Vec<Value>,

    /// Sends the key in this argument [default: in _meta["idempotency-key"]]
    #[arg(long, value_name = "NAME")]
    key_argument: Option<String>,

    /// Counts the effects: a shell command that prints how many there have been so far
    #[arg(long, value_name = "COMMAND", required_unless_present = "count_sql")]
    count_command: Option<String>,

    /// Counts the effects: a query that gives one number
    #[arg(
        long,
        value_name = "SQL",
        requires = "database",
        conflicts_with = "count_command"
    )]
    count_sql: Option<String>,

    /// Where --count-sql is asked: sqlite://FILE or postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "URL", requires = "count_sql")]
    database: Option<String>,

    /// Counts how often the tool has run, for the table: a shell command
    #[arg(long, value_name = "COMMAND")]
    count_executions: Option<String>,

    /// The server, over Streamable HTTP
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<Uri>,

    /// With --url: a header of each request, such as 'authorization: Bearer TOKEN'
    #[arg(long, value_name = "NAME: VALUE", requires = "url", value_parser = header, action = ArgAction::Append)]
    header: Vec<(HeaderName, HeaderValue)>,

    /// With --url: the same for another caller, who must not get the first one's results
    #[arg(long, value_name = "NAME: VALUE", requires = "url", value_parser = header, action = ArgAction::Append)]
    other_header: Vec<(HeaderName, HeaderValue)>,

    /// How many calls are made at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=256))]
    racers: u16,

    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "40s", value_parser = humantime::parse_duration)]
    patience: Duration,

    /// Prints JSON
    #[arg(long)]
    json: bool,

    /// The server to start, after `--`
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    command: Vec<OsString>,
}

impl Check {
    /// Makes the check, and prints what was found. Returns the exit code.
    ///
    /// # Errors
    ///
    /// The report cannot be printed.
    pub(crate) async fn run(self) -> Result<i32, Box<dyn Error>> {
        let played = match self.door() {
            Ok((check, door)) => check.run_at(&*door).await,
            Err(why) => return Ok(not_made(&why)),
        };
        let (report, code) = match &played {
            Ok(report) => (report, 0),
            Err(error) if error.kind() == CheckErrorKind::Wrong => (error.report(), 1),
            Err(error) => return Ok(not_made(error)),
        };
        let mut out = std::io::stdout();
        if self.json {
            writeln!(out, "{:#}", report.to_json())?;
        } else {
            write!(out, "{report}")?;
        }
        Ok(code)
    }

    fn door(&self) -> Result<(Checked, Box<dyn Door>), Box<dyn Error>> {
        let effects = match (&self.count_command, &self.count_sql, &self.database) {
            (Some(command), ..) => Count::Command(command.clone()),
            (None, Some(sql), Some(url)) => Count::sql(sql, url)?,
            _ => {
                return Err(
                    "nothing counts the effects: type --count-command or --count-sql".into(),
                );
            }
        };
        let racers = usize::from(self.racers);
        let mut check = Checked::new(&*self.tool, move || effects.clone().count())
            .with_arguments(self.arguments.clone())
            .with_racers(racers)
            .with_patience(self.patience);
        if let Some(other) = &self.other_arguments {
            check = check.with_other_arguments(other.clone());
        }
        for arguments in &self.failing_arguments {
            check = check.with_failure(format!("failing with {arguments}"), arguments.clone());
        }
        if let Some(name) = &self.key_argument {
            check = check.with_key_argument(name);
        }
        if let Some(command) = &self.count_executions {
            let executions = Count::Command(command.clone());
            check = check.with_executions(move || executions.clone().count());
        }
        let door: Box<dyn Door> = match &self.url {
            Some(url) => Box::new(Http::new(url, &self.header, &self.other_header)?),
            None => Box::new(Process::new(&self.command)),
        };
        Ok((check, door))
    }
}

/// The code of a check that could not be made, after it was said why.
fn not_made(why: &(impl std::fmt::Display + ?Sized)) -> i32 {
    // There is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "mcp-idempotent: {why}");
    2
}

fn object(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => Ok(Value::Object(members)),
        _ => Err("type a JSON object, such as '{\"cents\": 4200}'".to_owned()),
    }
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("type NAME: VALUE")?;
    let name = name.trim().parse();
    let name = name.map_err(|_| "that is not the name of a header".to_owned())?;
    let value = HeaderValue::from_str(value.trim());
    let mut value = value.map_err(|_| "that is not the value of a header".to_owned())?;
    value.set_sensitive(true);
    Ok((name, value))
}
