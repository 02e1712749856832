//! How each example starts and ends.

use std::{
    ffi::OsString,
    fmt,
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

/// Why an example ends early.
#[derive(Debug)]
#[non_exhaustive]
pub enum Stop {
    /// `--help` was asked for.
    Help,
    /// The arguments make no sense; the text says why.
    Usage(String),
    /// Something failed.
    Failed(anyhow::Error),
}

impl From<lexopt::Error> for Stop {
    fn from(error: lexopt::Error) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs an example's `main`. The exit code is 1 for a failure, 2 for wrong arguments.
pub fn run<F>(
    arguments: impl IntoIterator<Item = OsString>,
    usage: &str,
    main: impl FnOnce(lexopt::Parser) -> F,
) -> ExitCode
where
    F: Future<Output = Result<(), Stop>>,
{
    let parser = lexopt::Parser::from_args(arguments);
    let ended = tokio::runtime::Runtime::new()
        .context("the async runtime does not start")
        .map_err(Stop::from)
        .and_then(|runtime| {
            let ended = runtime.block_on(main(parser));
            // A read of standard input cannot be called back, and must not hold the exit up.
            runtime.shutdown_background();
            ended
        });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Help) => {
            // Nobody is left to tell if standard output is gone.
            let _ = io::stdout().write_all(usage.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Usage(error)) => {
            say(format_args!("error: {error}\n\nSee --help.\n"));
            ExitCode::from(2)
        }
        Err(Stop::Failed(error)) => {
            say(format_args!("error: {}\n", explain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes, without those that the error's own text tells already.
fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    text
}

/// Writes to standard error: standard output belongs to the protocol, or to the report.
pub fn say(text: fmt::Arguments<'_>) {
    // Nobody is left to tell if standard error is gone.
    let _ = io::stderr().write_fmt(text);
}

/// Prints what the example was started for to standard output.
pub fn print(text: fmt::Arguments<'_>) {
    // Nobody is left to tell if standard output is gone.
    let _ = io::stdout().write_fmt(text);
}

/// Sends the log to standard error; `RUST_LOG` says how much of it, and `default` if it is not set.
pub fn log_to_stderr(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}
