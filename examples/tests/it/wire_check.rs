//! `wire_check` on servers that keep the rules, and on one that does not.

use super::{
    Ended, example,
    http_postgres::shop::{ALICE, Shop},
    run,
};

fn assert_kept(ended: &Ended, at_least: usize) {
    let report = &ended.stdout;
    assert_eq!(ended.code, Some(0), "{report}{}", ended.stderr);
    assert!(report.ends_with("no rule is broken\n"), "{report}");
    let kept = report
        .lines()
        .filter(|line| line.starts_with("kept "))
        .count();
    assert!(kept >= at_least, "{kept} rules were kept: {report}");
}

/// The command line of `payments` on a file in this directory.
fn payments(directory: &tempfile::TempDir) -> Vec<String> {
    let program = example("payments").as_std().get_program().to_owned();
    let file = directory.path().join("payments.db");
    vec![
        program.into_string().unwrap(),
        "--store".to_owned(),
        format!("sqlite://{}", file.display()),
    ]
}

async fn check(arguments: &[String]) -> Ended {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    run("wire_check", &arguments).await
}

#[tokio::test]
async fn payments_keeps_the_rules_of_the_wire() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = [vec!["--".to_owned()], payments(&directory)].concat();
    assert_kept(&check(&arguments).await, 30);
}

#[tokio::test]
async fn http_postgres_keeps_the_rules_of_the_wire() {
    Shop::open("wire", async |shop| {
        let server = shop.start(&[]).await;
        let header = format!("--header=authorization=Bearer {ALICE}");
        let ended = check(&[header, "--tool=place_order".to_owned(), server.uri.clone()]).await;
        assert_kept(&ended, 30);
    })
    .await;
}

#[tokio::test]
async fn a_tool_without_protection_behind_the_proxy_keeps_the_rules_of_the_wire() {
    let directory = tempfile::tempdir().unwrap();
    let proxy = example("payments").as_std().get_program().to_owned();
    let proxy = std::path::Path::new(&proxy)
        .parent()
        .unwrap()
        .parent()
        .unwrap();
    let proxy = proxy.join("mcp-idempotent").display().to_string();
    let first = ["--tool=charge_card_unprotected", "--", &proxy, "--"].map(str::to_owned);
    let arguments = [first.to_vec(), payments(&directory)].concat();
    assert_kept(&check(&arguments).await, 20);
}

#[tokio::test]
async fn a_tool_without_protection_breaks_the_rules_of_the_wire() {
    let directory = tempfile::tempdir().unwrap();
    let first = ["--tool=charge_card_unprotected", "--"].map(str::to_owned);
    let ended = check(&[first.to_vec(), payments(&directory)].concat()).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    let broken = "BROKEN  a repeated key gets the first result";
    assert!(ended.stdout.contains(broken), "{}", ended.stdout);
}
