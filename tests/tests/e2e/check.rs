//! `mcp-idempotent check`, on servers with planted flaws and on one behind the proxy.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
};

use mcp_idempotent_tests::planted::{Flaw, USER};
use serde_json::Value;
use tempfile::TempDir;

use crate::proxy::program;

const PLANTED: &str = env!("CARGO_BIN_EXE_planted-server");

/// A planted server, and the file of its charges.
struct Place {
    directory: TempDir,
    flaw: &'static str,
}

impl Place {
    fn with(flaw: Flaw) -> Self {
        let named = Flaw::ALL.iter().find(|(_, it)| *it == flaw);
        Self {
            directory: tempfile::tempdir().unwrap(),
            flaw: named.unwrap().0,
        }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    /// `mcp-idempotent check` of its tool, but for the server.
    fn check(&self) -> Command {
        let mut check = Command::new(program::proxy());
        let database = format!("sqlite://{}", self.file("charges.db"));
        check
            .args(["check", "--tool", "charge", "--json"])
            .args(["--arguments", r#"{"cents": 4200}"#])
            .args(["--failing-arguments", r#"{"cents": 4200, "fails": true}"#])
            .args(["--count-sql", "SELECT count(*) FROM charge"])
            .args(["--database", &database]);
        check
    }

    fn over_stdio(&self) -> (i32, Value) {
        let file = self.file("charges.db");
        // The first process makes the tables, before anything is counted.
        let mut first = Command::new(PLANTED);
        let first = first.args([self.flaw, &file]).stdin(Stdio::null());
        drop(first.output().unwrap());
        reported(
            &self
                .check()
                .args(["--", PLANTED, self.flaw, &file])
                .output()
                .unwrap(),
        )
    }
}

/// A server that ends with its test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn reported(output: &Output) -> (i32, Value) {
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    (
        output.status.code().unwrap(),
        report.unwrap_or_else(|error| panic!("{error}: {said}")),
    )
}

/// The scenarios that are wrong, and why.
fn wrong(report: &Value) -> Vec<(&str, &str)> {
    let scenes = report["scenarios"].as_array().unwrap().iter();
    scenes
        .filter_map(|scene| Some((scene["name"].as_str()?, scene["finding"].as_str()?)))
        .collect()
}

fn assert_wrong(flaw: Flaw, scene: &str, why: &str) {
    let (code, report) = Place::with(flaw).over_stdio();
    assert_eq!(code, 1, "{report:#}");
    let found = wrong(&report);
    let is_found =
        |(name, finding): &(&str, &str)| name.starts_with(scene) && finding.contains(why);
    assert!(found.iter().any(is_found), "{report:#}");
}

#[test]
fn a_server_that_protects_itself_by_hand_is_fine_over_stdio() {
    let (code, report) = Place::with(Flaw::None).over_stdio();
    assert_eq!((code, &wrong(&report)[..]), (0, &[][..]), "{report:#}");
    let scenes = report["scenarios"].as_array().unwrap();
    let names: Vec<_> = scenes
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"server killed halfway, then repeated"),
        "{names:?}"
    );
    assert_eq!(names.len(), 21, "{names:?}");
}

#[test]
fn an_unprotected_tool_is_found_from_outside() {
    let why = "one operation took effect 3 times: a repeated key is not recognised";
    assert_wrong(Flaw::Unprotected, "repeated with its key", why);
}

#[test]
fn a_record_that_comes_after_the_effect_is_found_by_killing_the_server() {
    let scene = "server killed when the effect was there";
    assert_wrong(
        Flaw::RecordAfterTheEffect,
        scene,
        "the record comes after the effect",
    );
}

#[test]
fn a_look_up_before_the_lock_is_found_from_outside() {
    let why = "looking for the key and claiming it are two steps";
    assert_wrong(Flaw::LookUpBeforeTheLock, "8 at the same time", why);
}

#[test]
fn a_key_that_an_error_gives_back_is_found_from_outside() {
    let why = "its repeat acted again: 2 effects";
    assert_wrong(Flaw::ReleasedOnError, "failing with", why);
}

#[test]
fn a_conflict_that_is_not_checked_is_found_from_outside() {
    let scene = "the same key with other arguments";
    assert_wrong(Flaw::ConflictUnchecked, scene, "the first call's result");
}

#[test]
fn a_replay_with_another_result_is_found_from_outside() {
    let why = "callers of one operation were given different results";
    assert_wrong(Flaw::AnotherResult, "repeated with its key", why);
}

#[test]
fn callers_are_told_apart_over_http() {
    for (flaw, expected) in [(Flaw::None, 0), (Flaw::ScopeIgnored, 1)] {
        let place = Place::with(flaw);
        let server = Command::new(PLANTED)
            .args([place.flaw, &place.file("charges.db"), "http"])
            .stdout(Stdio::piped())
            .spawn();
        let mut server = Served(server.unwrap());
        let mut url = String::new();
        let mut output = BufReader::new(server.0.stdout.take().unwrap());
        output.read_line(&mut url).unwrap();
        let (ann, bob) = (format!("{USER}: ann"), format!("{USER}: bob"));
        let mut check = place.check();
        let check = check.args(["--url", url.trim()]);
        let check = check.args(["--header", &ann, "--other-header", &bob]);
        let (code, report) = reported(&check.output().unwrap());
        assert_eq!(code, expected, "{report:#}");
        let found = wrong(&report);
        assert_eq!(found.len(), usize::try_from(expected).unwrap(), "{found:?}");
        for (scene, why) in found {
            assert_eq!(scene, "another caller with the same key");
            assert!(why.contains("was given the first caller's result"), "{why}");
        }
    }
}

/// A server that nobody touched, in front of which the proxy stands.
#[test]
fn a_server_behind_the_proxy_is_fine() {
    let place = Place::with(Flaw::None);
    let (ledger, store) = (place.file("ledger"), place.file("calls.db"));
    std::fs::write(&ledger, "").unwrap();
    let proxy = program::proxy().display().to_string();
    let check = |server: &[&str]| {
        let mut check = Command::new(&proxy);
        check
            .args(["check", "--tool", "charge_card"])
            .args(["--arguments", r#"{"cents": 1}"#, "--count-command"])
            .arg(format!("wc -l < '{ledger}'"))
            .arg("--")
            .args(server);
        check.output().unwrap()
    };
    let bare = check(&[program::PLAIN, &ledger]);
    let said = String::from_utf8_lossy(&bare.stdout);
    assert_eq!(bare.status.code(), Some(1), "{said}");
    assert!(said.contains("scenarios are wrong"), "{said}");

    // What a killed proxy was doing is in progress for the length of its lease. A repeat is told so.
    let store = format!("sqlite://{store}");
    let behind = [
        &*proxy,
        "--store",
        &store,
        "--wait-ms",
        "0",
        "--",
        program::PLAIN,
        &ledger,
    ];
    let behind = check(&behind);
    let said = String::from_utf8_lossy(&behind.stdout);
    assert_eq!(behind.status.code(), Some(0), "{said}");
    assert!(said.ends_with("nothing is wrong\n"), "{said}");
}

#[test]
fn a_check_that_cannot_be_made_ends_with_two_and_says_why() {
    let check = |arguments: &[&str]| {
        let mut check = Command::new(program::proxy());
        let ended = check.arg("check").args(arguments).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        (ended.status.code().unwrap(), said)
    };
    let (code, said) = check(&["--tool", "pay", "--", "my-server"]);
    assert!(code == 2 && said.contains("--count-command"), "{said}");
    let count = ["--tool", "pay", "--count-command", "echo 1", "--"];
    let (code, said) = check(&[&count[..], &["/no/such/server"]].concat());
    assert!(
        code == 2 && said.contains("cannot start /no/such/server"),
        "{said}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let plain = [program::PLAIN, file.path().to_str().unwrap()];
    let (code, said) = check(&[&count[..], &plain].concat());
    assert!(
        code == 2 && said.contains(r#"the server lists no tool "pay""#),
        "{said}"
    );
    let count = ["--tool", "balance", "--count-command", "echo many", "--"];
    let (code, said) = check(&[&count[..], &plain].concat());
    assert!(code == 2 && said.contains("which is no number"), "{said}");
}
