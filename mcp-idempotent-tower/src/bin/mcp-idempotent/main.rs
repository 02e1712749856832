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

use std::{error::Error, process::exit};

use clap::Parser as _;
use tokio::runtime::{Builder, Runtime};

use self::options::{Options, Other};

/// The exit code if the program could not do what it was asked.
const FAILED: i32 = 1;

fn main() {
    let options = Options::parse();
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

fn failed(error: &dyn Error) -> i32 {
    log::failed(error);
    FAILED
}
