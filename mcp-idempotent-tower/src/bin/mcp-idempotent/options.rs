//! What is typed on the command line.

use std::{collections::HashMap, ffi::OsString, net::SocketAddr, time::Duration};

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use http::HeaderName;
use mcp_idempotent_tower::{
    KeyRequirement, OnDoubt, Policy, Wait,
    relay::{Derive, RelaySettings, ServerError, ToolRule},
};

use crate::{check::Check, operator::Operator, store::StoreName, upstream::Upstream};

const ABOUT: &str = "Stands in front of an MCP server, and makes repeated tool calls run once.

The server needs no change. A call that is repeated, with the same key or with the same tool and \
arguments, gets the first call's result. All other messages pass unchanged.";

const NOTES: &str = "\
Examples:
  mcp-idempotent -- npx -y @modelcontextprotocol/server-memory
  mcp-idempotent --store sqlite://calls.db --run-id desk-1 -- my-server --verbose
  mcp-idempotent --listen 127.0.0.1:8080 --upstream http://127.0.0.1:3001 --scope-header X-User

What it promises:
  At most one execution that the proxy knows of. If the server dies during a call, its outcome is
  unknown: the client is told so, and as long as the proxy knows of the call, it does not run again
  (see --on-unknown).

  The default store is memory, and each start of the proxy has a run id of its own. So a proxy that
  was restarted, for instance because its server died, recognises nothing from before. With a store
  on disk it recognises calls with a key; with --run-id as well, it recognises all calls.";

/// Stands in front of an MCP server, and makes repeated tool calls run once.
#[derive(Debug, Parser)]
#[command(
    name = "mcp-idempotent",
    version,
    about = "Stands in front of an MCP server, and makes repeated tool calls run once.",
    long_about = ABOUT,
    after_help = NOTES,
    override_usage = "mcp-idempotent [OPTIONS] -- COMMAND [ARGS]...\n       mcp-idempotent [OPTIONS] --listen ADDRESS --upstream URL\n       mcp-idempotent records|migrate|doctor|check [OPTIONS]",
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) other: Option<Other>,

    /// Where calls are remembered: memory, sqlite://FILE, postgres://USER@HOST/DATABASE or
    /// redis://HOST [default: $MCP_IDEMPOTENT_STORE, or memory]
    #[arg(long, value_name = "STORE")]
    pub(crate) store: Option<StoreName>,

    /// With --store redis: where it is
    #[arg(long, value_name = "URL", env = "REDIS_URL", hide_env_values = true)]
    pub(crate) redis_url: Option<String>,

    /// Whose records these are. Other servers on the same store need other names [default: made
    /// from the command and its arguments, so that a changed argument makes another server of it]
    #[arg(long, value_name = "NAME")]
    pub(crate) application: Option<String>,

    /// Whose calls these are. Callers with different scopes never get each other's results. Needed
    /// with Postgres and Redis
    #[arg(long, value_name = "NAME")]
    pub(crate) scope: Option<String>,

    /// With --listen: the header in which a gateway that you trust names the caller
    #[arg(
        long,
        value_name = "HEADER",
        requires = "listen",
        conflicts_with = "scope"
    )]
    pub(crate) scope_header: Option<HeaderName>,

    /// Serves over HTTP instead, at this address
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "upstream",
        conflicts_with = "command",
        value_parser = address
    )]
    pub(crate) listen: Option<SocketAddr>,

    /// With --listen: the server, as http://HOST:PORT or https://HOST. Paths are unchanged
    #[arg(long, value_name = "URL", requires = "listen")]
    pub(crate) upstream: Option<Upstream>,

    /// With --listen: a name by which clients reach the proxy; once for each name. At a loopback
    /// address the proxy refuses requests for other hosts than localhost, 127.0.0.1 and ::1
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) allowed_host: Vec<String>,

    /// How long a completed call is remembered, with a key or without, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 600_000, value_parser = clap::value_parser!(u64).range(1..))]
    ttl_ms: u64,

    /// Takes part in recognising calls without a key. Keep it over restarts to recognise calls from
    /// before [default: a new one for each start]
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    /// Which calls without a key are recognised by their arguments
    #[arg(long, value_name = "WHICH", default_value = "all")]
    derive: DeriveName,

    /// The argument that may carry a key, as a JSON pointer
    #[arg(long, value_name = "/POINTER")]
    key_argument: Option<String>,

    /// How long a repeated call waits for the first one, in milliseconds; 0 answers at once that it
    /// runs
    #[arg(long, value_name = "N", default_value_t = 30_000)]
    wait_ms: u64,

    /// What becomes of a call whose outcome is unknown because the server or the proxy died:
    /// `error` says so and runs nothing, `retry` runs the call again [default: error, but retry for
    /// tools with `idempotentHint`]
    #[arg(long, value_name = "WHAT")]
    on_unknown: Option<OnUnknown>,

    /// What an error of the server says: `release`: nothing happened, so a repeated call runs;
    /// `unknown`: the tool may have acted
    #[arg(long, value_name = "WHAT", default_value = "release")]
    on_error: OnErrorName,

    /// A rule for one tool: words joined by commas, of pass, derive, explicit, required, error,
    /// retry. May be given several times
    #[arg(long = "tool", value_name = "NAME=RULE", value_parser = tool_rule, action = ArgAction::Append)]
    tools: Vec<(String, ToolRule)>,

    /// Forwards a client's cancellation of a call. Its outcome is then unknown
    #[arg(long)]
    forward_cancel: bool,

    /// Says in the content of a repeated result that it is one, for models, which see nothing else
    #[arg(long)]
    pub(crate) announce: bool,

    /// What is logged to standard error, such as `info` or `mcp_idempotent_core=debug`
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    pub(crate) log: String,

    /// The server to start, after `--`
    #[arg(
        last = true,
        value_name = "COMMAND",
        required_unless_present = "listen"
    )]
    pub(crate) command: Vec<OsString>,
}

/// What the program does if it is not a proxy.
#[derive(Debug, Subcommand)]
pub(crate) enum Other {
    #[command(flatten)]
    Operator(Operator),
    Check(Check),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DeriveName {
    /// Those of all tools but the ones with `readOnlyHint`
    All,
    /// Those of tools that say `readOnlyHint: false` or `destructiveHint: true`
    Annotated,
    /// None: only calls with a key are protected
    None,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnUnknown {
    Error,
    Retry,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnErrorName {
    Release,
    Unknown,
}

const RULES: &str = "type NAME=RULE, where RULE is one or more of pass, derive, explicit, required, \
    error, retry, joined by commas, such as charge_card=required,error";

const CHOICES: &str = "type `pass` alone, or one of derive, explicit and required, or one of error and retry, or \
    one of each";

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "type an IP address and a port, such as 127.0.0.1:8080")
}

fn tool_rule(text: &str) -> Result<(String, ToolRule), String> {
    let (name, words) = text.split_once('=').ok_or(RULES)?;
    if name.is_empty() {
        return Err(RULES.to_owned());
    }
    let mut rule = ToolRule::default();
    for word in words.split(',') {
        let is_for_keys = matches!(word, "derive" | "explicit" | "required");
        let is_for_doubt = matches!(word, "error" | "retry");
        if rule.passes
            || word == "pass" && (rule.key.is_some() || rule.on_doubt.is_some())
            || is_for_keys && rule.key.is_some()
            || is_for_doubt && rule.on_doubt.is_some()
        {
            return Err(format!("`{words}` contradicts itself; {CHOICES}"));
        }
        match word {
            "pass" => rule.passes = true,
            "derive" => rule.key = Some(KeyRequirement::Derived),
            "explicit" => rule.key = Some(KeyRequirement::Explicit),
            "required" => rule.key = Some(KeyRequirement::Required),
            "error" => rule.on_doubt = Some(OnDoubt::Fail),
            "retry" => rule.on_doubt = Some(OnDoubt::Rerun),
            other => return Err(format!("`{other}` is not a rule; {RULES}")),
        }
    }
    Ok((name.to_owned(), rule))
}

impl Options {
    /// The policy of all tools.
    pub(crate) fn policy(&self) -> Policy {
        let mut policy = Policy::default();
        policy.retention = Duration::from_millis(self.ttl_ms);
        policy.window = policy.retention;
        policy.in_doubt_retention = policy.in_doubt_retention.max(policy.retention);
        policy.key_argument = self.key_argument.as_deref().map(Into::into);
        policy.wait = match self.wait_ms {
            0 => Wait::Reject,
            bound => Wait::UpTo(Duration::from_millis(bound)),
        };
        policy
    }

    /// What the relay is told.
    pub(crate) fn relay(&self) -> RelaySettings {
        let mut settings = RelaySettings::default();
        settings.derive = match self.derive {
            DeriveName::All => Derive::All,
            DeriveName::Annotated => Derive::Annotated,
            DeriveName::None => Derive::None,
        };
        settings.run_id.clone_from(&self.run_id);
        settings.on_doubt = self.on_unknown.map(|on_unknown| match on_unknown {
            OnUnknown::Error => OnDoubt::Fail,
            OnUnknown::Retry => OnDoubt::Rerun,
        });
        settings.server_error = match self.on_error {
            OnErrorName::Release => ServerError::NothingHappened,
            OnErrorName::Unknown => ServerError::MayHaveActed,
        };
        settings.forward_cancel = self.forward_cancel;
        settings.tools = self.tools.iter().cloned().collect::<HashMap<_, _>>();
        settings
    }
}
