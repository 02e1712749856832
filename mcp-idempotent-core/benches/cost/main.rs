//! What one call costs in things that the load of the machine hardly changes: instructions of the
//! client and of the server, system calls, messages, log and dead rows.
//!
//! Each figure is a difference: a child of this program makes some calls, another one makes more of
//! them, and what the second took beyond the first is divided by the calls that it made beyond the
//! first. So neither starting nor preparing is in it.
//!
//! ```sh
//! tests/run --with-services -- cargo bench -p mcp-idempotent-core --features postgres,sqlite --bench cost
//! cargo bench -p mcp-idempotent-core --features postgres,sqlite --bench cost -- check
//! ```
//!
//! `check` compares the paths without a server with `baseline.txt`, and fails if one of them takes
//! over 5 % more or less. `accept` writes that file. Further arguments select paths by their start.

#![expect(
    clippy::print_stdout,
    reason = "what it finds is for its caller to read"
)]

#[path = "../call/mod.rs"]
mod call;
mod count;
#[path = "../../../tests/src/kit/mod.rs"]
mod kit;
mod path;
mod server;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use count::{instructions, is_there, system_calls};
use path::{BESIDE_A_SERVER, WITHOUT_A_SERVER};

/// How far from the baseline a path may be.
const TOLERANCE: f64 = 0.05;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["make", path, calls, target] => {
            path::make(path, calls.parse().expect("a number"), target);
            ExitCode::SUCCESS
        }
        ["check"] => check(),
        ["accept"] => accept(),
        starts => {
            table(starts);
            ExitCode::SUCCESS
        }
    }
}

fn table(starts: &[&str]) {
    let is_wanted =
        |path: &&&str| starts.is_empty() || starts.iter().any(|start| path.starts_with(start));
    println!("| path | client: instructions | system calls | of them sends |");
    println!("| --- | --- | --- | --- |");
    for path in WITHOUT_A_SERVER.iter().filter(is_wanted) {
        let calls = system_calls(path, "");
        println!(
            "| {path} | {:.0} | {:.1} | {:.1} |",
            instructions(path, ""),
            calls.all,
            calls.sends
        );
    }
    let wanted: Vec<&str> = BESIDE_A_SERVER.iter().filter(is_wanted).copied().collect();
    if !wanted.is_empty() {
        server::table(&wanted);
    }
}

fn baseline() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("benches/cost/baseline.txt")
}

fn measured() -> Option<BTreeMap<&'static str, f64>> {
    if !is_there("valgrind") {
        println!("cost: skipped the check of instructions: valgrind is not installed");
        return None;
    }
    // Threads that meet at a lock take more; the least is what the call itself takes.
    let least = |path: &str| {
        (0..3)
            .map(|_| instructions(path, ""))
            .fold(f64::INFINITY, f64::min)
    };
    let of = |&path: &&'static str| (path, least(path));
    Some(WITHOUT_A_SERVER.iter().map(of).collect())
}

fn accept() -> ExitCode {
    let Some(measured) = measured() else {
        return ExitCode::FAILURE;
    };
    let lines = measured
        .iter()
        .map(|(path, count)| format!("{path} {count:.0}\n"));
    std::fs::write(baseline(), lines.collect::<String>()).expect("the baseline can be written");
    ExitCode::SUCCESS
}

fn check() -> ExitCode {
    let Some(measured) = measured() else {
        return ExitCode::SUCCESS;
    };
    let text = std::fs::read_to_string(baseline()).expect("baseline.txt");
    let expected: BTreeMap<&str, f64> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(path, count)| (path, count.parse().expect("a number")))
        .collect();
    let mut is_good = true;
    for (path, count) in measured {
        let before = expected.get(path).copied().unwrap_or(f64::NAN);
        let change = count / before - 1.0;
        let is_within = change.abs() <= TOLERANCE;
        is_good &= is_within;
        let verdict = if is_within { "" } else { ", too far" };
        println!(
            "cost: {path}: {count:.0} instructions a call, {:+.1} %{verdict}",
            change * 100.0
        );
    }
    if is_good {
        return ExitCode::SUCCESS;
    }
    println!("cost: if this is meant, write the new figures with `-- accept`");
    ExitCode::FAILURE
}
