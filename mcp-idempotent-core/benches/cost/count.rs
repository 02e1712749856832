//! Counting by valgrind and strace.

use std::process::{Command, Stdio};

/// Calls of the first child, which are not counted, and calls that are.
const BEFORE: u32 = 100;
const COUNTED: u32 = 400;

#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) all: f64,
    pub(crate) sends: f64,
}

pub(crate) fn is_there(program: &str) -> bool {
    let mut asked = Command::new(program);
    asked
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    asked.status().is_ok_and(|status| status.success())
}

/// A child of this program, under `program`.
fn child(program: &str, arguments: &[&str], path: &str, calls: u32, target: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(std::env::current_exe().expect("this program"))
        .args(["make", path, &calls.to_string(), target])
        .stdout(Stdio::null());
    command
}

/// Without counting anything.
pub(crate) fn plainly(path: &str, calls: u32, target: &str) {
    let mut child = child("env", &[], path, calls, target);
    assert!(child.status().expect("env").success(), "{path}");
}

fn report(mut child: Command) -> String {
    let output = child.output().expect("the program that counts");
    let text = String::from_utf8(output.stderr).expect("its report");
    assert!(output.status.success(), "{text}");
    text
}

fn a_call(count: impl Fn(u32) -> f64) -> f64 {
    let before = count(BEFORE);
    (count(BEFORE + COUNTED) - before) / f64::from(COUNTED)
}

/// Instructions of the client in user mode, a call.
pub(crate) fn instructions(path: &str, target: &str) -> f64 {
    a_call(|calls| {
        let tool = [
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
        ];
        let text = report(child("valgrind", &tool, path, calls, target));
        references(&text).unwrap_or_else(|| panic!("{path}: valgrind said {text}"))
    })
}

/// The last count in a report of cachegrind.
pub(crate) fn references(report: &str) -> Option<f64> {
    let line = report.lines().rfind(|line| line.contains("refs:"))?;
    let digits: String = line
        .rsplit("refs:")
        .next()?
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// System calls of the client, a call.
pub(crate) fn system_calls(path: &str, target: &str) -> Calls {
    let count = |calls, name: &str| {
        let summary = ["-f", "-c", "-U", "calls,name"];
        let text = report(child("strace", &summary, path, calls, target));
        let line = text
            .lines()
            .rfind(|line| line.split_whitespace().nth(1) == Some(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok())
            .unwrap_or(0.0)
    };
    Calls {
        all: a_call(|calls| count(calls, "total")),
        sends: a_call(|calls| count(calls, "sendto")),
    }
}
