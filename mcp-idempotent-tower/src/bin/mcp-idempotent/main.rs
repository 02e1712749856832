//! `mcp-idempotent [OPTIONS] -- COMMAND [ARGS]`: a proxy in front of an unchanged MCP server. With
//! `--listen` and `--upstream`, in front of one that is reached over HTTP.
//! `mcp-idempotent records`, `migrate` and `doctor` are for operators,
//! `check` is for authors of servers.

mod check;
mod child;
mod hosts;
mod http;
mod log;
mod operator;
mod options;
mod proxy;
mod stdio;
mod store;
mod upstream;

use std::{error::Error, fmt, process::exit};

use clap::{
    Parser as _,
    error::{ContextKind, ContextValue, ErrorKind},
};
use tokio::runtime::{Builder, Runtime};

use self::options::{Options, Other};

/// The exit code if the program could not do what it was asked.
const FAILED: i32 = 1;
/// The exit code for wrong options, which clap uses too.
const WRONG_OPTIONS: i32 = 2;

/// Something has to be typed differently.
#[derive(Debug)]
struct WrongOptions(String);

impl fmt::Display for WrongOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for WrongOptions {}

impl From<&str> for WrongOptions {
    fn from(what_to_type: &str) -> Self {
        Self(what_to_type.to_owned())
    }
}

fn main() {
    let options = Options::try_parse().unwrap_or_else(|error| with_tip(error).exit());
    let runtime = match start(&options) {
        Ok(runtime) => runtime,
        Err(error) => exit(failed(&*error)),
    };
    runtime.block_on(async {
        let code = run(options).await;
        // Not a return: the thread that reads standard input may wait for ever.
        exit(code.unwrap_or_else(|error| failed(&*error)))
    });
}

/// Says where the server's command goes, if it was typed without `--`.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let is_a_word = |value: &ContextValue| matches!(value, ContextValue::String(word) if !word.starts_with('-'));
    if error.kind() == ErrorKind::UnknownArgument
        && error.get(ContextKind::InvalidArg).is_some_and(is_a_word)
    {
        let tip =
            "the server's command comes after `--`: mcp-idempotent [OPTIONS] -- COMMAND [ARGS]...";
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![tip.into()]),
        );
    }
    error
}

fn start(options: &Options) -> Result<Runtime, Box<dyn Error>> {
    log::start(&options.log)?;
    // One client's lines are quickest in one thread: each hand-over to another costs more than
    // everything else that the proxy does.
    let mut runtime = if options.listen.is_some() {
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    Ok(runtime.enable_all().build()?)
}

async fn run(mut options: Options) -> Result<i32, Box<dyn Error>> {
    match options.other.take() {
        Some(Other::Operator(operator)) => operator.run().await.map(operator::Ended::code),
        Some(Other::Check(check)) => check.run().await,
        None => proxy::run(options).await,
    }
}

fn failed(error: &(dyn Error + 'static)) -> i32 {
    log::failed(error);
    if error.is::<WrongOptions>() {
        WRONG_OPTIONS
    } else {
        FAILED
    }
}
