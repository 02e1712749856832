//! `mcp-idempotent [OPTIONS] -- COMMAND [ARGS]`: a proxy in front of an MCP server that stays as it is.
//! With `--listen` and `--upstream`, in front of one that is reached over HTTP. `mcp-idempotent records`,
//! `migrate` and `doctor` are for operators.

mod child;
mod http;
mod log;
mod operator;
mod options;
mod proxy;
mod store;

use std::process::exit;

use clap::Parser as _;

use self::options::Options;

/// The code of a program that could not do what it was asked for.
const FAILED: i32 = 1;

#[tokio::main]
async fn main() {
    let mut options = Options::parse();
    let ran = match options.operator.take() {
        Some(operator) => match log::start(&options.log) {
            Ok(()) => operator.run().await.map(operator::Ended::code),
            Err(error) => Err(error),
        },
        None => proxy::run(options).await,
    };
    let code = match ran {
        Ok(code) => code,
        Err(error) => {
            log::failed(&*error);
            FAILED
        }
    };
    // Not a return: the thread that reads standard input may wait for ever.
    exit(code);
}
