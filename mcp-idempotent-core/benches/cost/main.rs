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

/// How far above the baseline a path may be.
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

/// The fewest instructions of a few measurements. Threads that meet at a lock take more; the least is
/// what the call itself takes. It measures on while the least is above `enough`.
fn least(path: &str, enough: f64) -> f64 {
    let mut least = f64::INFINITY;
    for tried in 0..9 {
        if tried >= 3 && least <= enough {
            break;
        }
        least = least.min(instructions(path, ""));
    }
    least
}

/// Our own paths. What SQLite takes by itself is not checked.
fn checked() -> impl Iterator<Item = &'static str> {
    let all = WITHOUT_A_SERVER.iter().copied();
    all.filter(|path| !path.contains("bare"))
}

fn has_valgrind() -> bool {
    let found = is_there("valgrind");
    if !found {
        println!("cost: skipped the check of instructions: valgrind is not installed");
    }
    found
}

fn accept() -> ExitCode {
    if !has_valgrind() {
        return ExitCode::FAILURE;
    }
    let lines: String = checked()
        .map(|path| format!("{path} {:.0}\n", least(path, f64::INFINITY)))
        .collect();
    std::fs::write(baseline(), lines).expect("the baseline can be written");
    ExitCode::SUCCESS
}

fn check() -> ExitCode {
    if !has_valgrind() {
        return ExitCode::SUCCESS;
    }
    let text = std::fs::read_to_string(baseline()).expect("baseline.txt");
    let expected: BTreeMap<&str, f64> = text
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(path, count)| (path, count.parse().expect("a number")))
        .collect();
    let mut is_good = true;
    for path in checked() {
        let before = expected.get(path).copied().expect("a line for each path");
        let most = before * (1.0 + TOLERANCE);
        let count = least(path, most);
        let is_within = count <= most;
        is_good &= is_within;
        let verdict = if is_within { "" } else { ", too many" };
        println!(
            "cost: {path}: {count:.0} instructions a call, {:+.1} %{verdict}",
            (count / before - 1.0) * 100.0
        );
    }
    if is_good {
        return ExitCode::SUCCESS;
    }
    println!("cost: if this is meant, write the new figures with `-- accept`");
    ExitCode::FAILURE
}
