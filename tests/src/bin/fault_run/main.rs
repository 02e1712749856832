//! Kills real things while real servers answer, and judges what came of each call.
//!
//! ```sh
//! tests/run --with-services -- cargo run -p mcp-idempotent-tests --bin fault-run -- short
//! tests/run --with-services -- cargo run -p mcp-idempotent-tests --bin fault-run -- long 12000 /tmp/faults.json
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what it finds is for its caller to read"
)]

mod caller;
mod inject;
mod judge;
mod link;
mod matrix;
mod random;
mod round;
mod row;
mod server;
mod site;
mod storm;

use std::process::ExitCode;

const USAGE: &str = "usage: fault-run short [--seed N] [--only WORDS]
       fault-run long CALLS STATE [--seed N] [--only WORDS]
       fault-run table STATE
       fault-run storm CALLS FAULTS

short   each row of the matrix once
long    rows again and again until so many calls are made; goes on from what STATE has
table   writes what STATE has into docs/guarantees.md
storm   calls on Postgres under faults at random
--only  rows whose name has these words: fault | transport | store | mode";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse().expect("a number");
    match words.as_slice() {
        [server::SERVE, settings] => server::serve(settings).await,
        [storm::WORK, url] => storm::work(url).await,
        ["storm", calls, faults] => return storm::run(number(calls), number(faults)).await,
        ["short", options @ ..] => return matrix::short(&matrix::Options::read(options)).await,
        ["long", calls, state, options @ ..] => {
            let options = matrix::Options::read(options);
            return matrix::long(number(calls), state.as_ref(), &options).await;
        }
        ["table", state] => return matrix::write_table(state.as_ref()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
