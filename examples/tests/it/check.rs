//! `mcp-idempotent check` finds nothing wrong with the examples.

use std::path::Path;

use serde_json::Value;
use tokio::process::Command;

use super::{PATIENCE, USER_HEADER, example, over_http, sqlite};

/// The built program `mcp-idempotent`, which stands beside the examples' directory.
fn program() -> Command {
    let example = example("payments").as_std().get_program().to_owned();
    let profile = Path::new(&example).parent().and_then(Path::parent).unwrap();
    let mut program = Command::new(profile.join("mcp-idempotent"));
    program.kill_on_drop(true);
    program
}

fn path(program: &str) -> String {
    let program = example(program).as_std().get_program().to_owned();
    program.into_string().unwrap()
}

/// Starts a server once, so that its tables are there before anything is counted.
async fn make_tables(server: &[&str]) {
    let mut command = Command::new(server[0]);
    command
        .args(&server[1..])
        .stdin(std::process::Stdio::null());
    drop(command.output().await.unwrap());
}

async fn assert_fine(check: &[&str], server: &[&str]) {
    let mut command = program();
    command.args(["check", "--json"]).args(check).args(server);
    let ended = tokio::time::timeout(PATIENCE, command.output()).await;
    let ended = ended.unwrap().unwrap();
    let report = String::from_utf8_lossy(&ended.stdout);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{report}{said}");
    let report: Value = serde_json::from_str(&report).unwrap();
    let scenes = report["scenarios"].as_array().unwrap();
    assert!(scenes.len() >= 18, "{report:#}");
    let repeated = &scenes[1];
    let expected = serde_json::json!(["result", "replay", "replay"]);
    assert_eq!(repeated["told"], expected, "{report:#}");
}

#[tokio::test]
async fn nothing_is_wrong_with_hello_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("expenses.db").display().to_string();
    let check = [
        "--tool=book_expense",
        r#"--arguments={"what": "tea {unique}", "cents": 250}"#,
        "--count-sql=SELECT count(*) FROM expenses",
        &format!("--database=sqlite://{file}"),
    ];
    let server = ["--", &path("hello_sqlite"), &file];
    make_tables(&server[1..]).await;
    assert_fine(&check, &server).await;
}

/// The check of `charge_card`, on charges in this file.
fn of_charges(store: &str) -> [String; 6] {
    [
        "--tool=charge_card".to_owned(),
        r#"--arguments={"customer": "ann {unique}", "amount_cents": 4200, "hold_ms": 60}"#
            .to_owned(),
        r#"--failing-arguments={"customer": "", "amount_cents": 4200}"#.to_owned(),
        "--key-argument=idempotency_key".to_owned(),
        "--count-sql=SELECT count(*) FROM charges".to_owned(),
        format!("--database={store}"),
    ]
}

#[tokio::test]
async fn nothing_is_wrong_with_payments() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(&directory);
    let server = ["--", &path("payments"), "--store", &store];
    make_tables(&server[1..]).await;
    let check = of_charges(&store);
    assert_fine(&check.each_ref().map(String::as_str), &server).await;
}

#[tokio::test]
async fn nothing_is_wrong_with_payments_over_http() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(&directory);
    let (url, _server) = over_http(&["--store", &store]).await;
    let check = of_charges(&store);
    let (ada, bob) = (format!("{USER_HEADER}: ada"), format!("{USER_HEADER}: bob"));
    let server = ["--url", &url, "--header", &ada, "--other-header", &bob];
    assert_fine(&check.each_ref().map(String::as_str), &server).await;
}

#[tokio::test]
async fn a_tool_of_payments_without_protection_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(&directory);
    let server = [&*path("payments"), "--store", &store];
    make_tables(&server).await;
    let mut command = program();
    command
        .args(["check", "--tool=charge_card_unprotected"])
        .arg(r#"--arguments={"customer": "ann", "amount_cents": 4200}"#)
        .arg("--count-sql=SELECT count(*) FROM charges")
        .arg(format!("--database={store}"))
        .arg("--")
        .args(server);
    let ended = command.output().await.unwrap();
    let report = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{report}");
    let finding = "one operation took effect 3 times: a repeated key is not recognised\n    in: repeated with its key\n";
    assert!(report.contains(finding), "{report}");
}
