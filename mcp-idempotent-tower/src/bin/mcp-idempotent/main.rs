//! `mcp-idempotent [OPTIONS] -- COMMAND [ARGS]`: a proxy in front of an MCP server that stays as it is.
//! With `--listen` and `--upstream`, in front of one that is reached over HTTP.

mod child;
mod http;
mod log;
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
    let options = Options::parse();
    let code = match proxy::run(options).await {
        Ok(code) => code,
        Err(error) => {
            log::failed(&*error);
            FAILED
        }
    };
    // Not a return: the thread that reads standard input may wait for ever.
    exit(code);
}
