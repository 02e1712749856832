//! Kills real things while real servers answer, and judges what came of each call.
//!
//! ```sh
//! tests/run --faults
//! tests/run --faults -- long 12000 faults.json
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what it finds is for its caller to read"
)]

mod caller;
mod inject;
mod installation;
mod judge;
mod link;
mod matrix;
mod mounts;
mod random;
mod round;
mod row;
mod server;
mod site;
mod storm;

use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: fault-run short [--seed N] [--only WORDS] [--older PROGRAM]
       fault-run long CALLS STATE [--seed N] [--only WORDS] [--older PROGRAM]
       fault-run table STATE
       fault-run storm CALLS FAULTS

short   each row of the matrix once, and of those that take long one for each fault;
        with --only, whatever it names
long    rows again and again until so many calls are made; goes on from what STATE has
table   writes what STATE has into docs/guarantees.md
storm   calls on Postgres under faults at random
--only  rows whose name has these words: fault | transport | store | mode
--older an earlier build of this program: in each row it is the process that the fault happens to, which
        comes back as this build, and serves beside this one, as in a rolling deploy";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["short" | "long", ..] = words.as_slice() {
        mounts::be_alone();
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(begin(&words))
}

async fn begin(words: &[&str]) -> ExitCode {
    match words {
        [server::SERVE, settings] => server::serve(settings).await,
        [storm::WORK, url] => storm::work(url).await,
        words => tokio::select! {
            code = run(words) => return code,
            // What was started ends with what is dropped here.
            () = told_to_end() => return ExitCode::FAILURE,
        },
    }
    ExitCode::SUCCESS
}

async fn run(words: &[&str]) -> ExitCode {
    let number = |text: &str| text.parse().expect("a number");
    match words {
        ["short", options @ ..] => matrix::short(&matrix::Options::read(options)).await,
        ["long", calls, state, options @ ..] => {
            let options = matrix::Options::read(options);
            matrix::long(number(calls), state.as_ref(), &options).await
        }
        ["table", state] => matrix::write_table(state.as_ref()),
        ["storm", calls, faults] => storm::run(number(calls), number(faults)).await,
        _ => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

async fn told_to_end() {
    let mut terminated = signal(SignalKind::terminate()).expect("a signal handler");
    let mut interrupted = signal(SignalKind::interrupt()).expect("a signal handler");
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
}
