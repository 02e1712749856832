//! Tools that act on other systems, and what faults there and here do to them.

use mcp_idempotent_examples::external_api::api::Api;
use rmcp::model::CallToolRequestParams;
use serde_json::json;

use super::{Ended, database_url, finish, is_replay, mode, over_stdio, run, sqlite, tool};

/// `[calls, keys, acted]` of each line of each of the tables.
fn api_counts(report: &str) -> Vec<[usize; 3]> {
    report
        .lines()
        .filter_map(|line| {
            let mut counts = line.split('│').nth(1)?.split_whitespace();
            let mut next = || counts.next()?.parse().ok();
            Some([next()?, next()?, next()?])
        })
        .collect()
}

fn shows_one_charge_under_each_fault(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let counts = api_counts(&ended.stdout);
    assert_eq!(counts.len(), 24, "{}", ended.stdout);
    let (with_keys, without) = counts.split_at(8);
    let (rerun, fail) = without.split_at(8);
    for [calls, keys, acted] in with_keys {
        assert!(*calls >= 1 && (*keys, *acted) == (1, 1), "{}", ended.stdout);
    }
    for (n, [calls, keys, acted]) in rerun.iter().enumerate() {
        // In the fifth, the server was killed before it called.
        let least = if n == 4 { 1 } else { 2 };
        assert!(*acted >= least && acted == calls, "{}", ended.stdout);
        assert_eq!(*keys, 1, "{}", ended.stdout);
    }
    for [calls, _, acted] in fail {
        assert!(*calls <= 1 && acted == calls, "{}", ended.stdout);
    }
    for line in ended.stdout.lines() {
        assert!(line.chars().count() <= 100, "wider than 100: {line}");
    }
    assert_eq!(ended.stderr, "");
}

#[tokio::test]
async fn external_api_shows_one_charge_under_each_fault_on_sqlite() {
    shows_one_charge_under_each_fault(&run("external_api", &[]).await);
}

#[tokio::test]
async fn external_api_shows_one_charge_under_each_fault_on_postgres() {
    let url = database_url();
    shows_one_charge_under_each_fault(&run("external_api", &["--store", &url]).await);
}

async fn pays_an_invoice_and_sends_a_receipt_once(store: &str, more: &[&str]) {
    let api = Api::start(true, []).await.unwrap();
    let url = api.url();
    let mut arguments = vec![
        "--store",
        store,
        "--payment-url",
        &url,
        "--receipt-url",
        &url,
    ];
    arguments.extend(more);
    let (client, _server) = over_stdio(&arguments).await;
    let tools = client.list_all_tools().await.unwrap();
    let invoice = json!({ "invoice": "2026-117", "amount_cents": 1999 });
    let message = json!({ "customer": "ada", "message": "thank you" });
    let mut calls = 0;
    for (name, arguments, id) in [
        ("pay_invoice", invoice, "payment_id"),
        ("send_receipt", message, "receipt_id"),
    ] {
        assert_eq!(mode(tool(&tools, name)), Some("lease"));
        let mut params = CallToolRequestParams::new(name);
        params.arguments = arguments.as_object().cloned();
        let first = finish(client.peer(), params.clone()).await;
        let retry = finish(client.peer(), params).await;
        calls += 1;
        assert!(!is_replay(&first), "{first:?}");
        assert!(is_replay(&retry), "{retry:?}");
        let structured = first.structured_content.unwrap();
        assert_eq!(structured[id], format!("ch_{calls}"));
        assert_eq!(retry.structured_content, Some(structured));
        let counts = api.counts();
        assert_eq!(
            (counts.calls, counts.keys, counts.charges),
            (calls, calls, calls)
        );
    }
}

#[tokio::test]
async fn payments_pays_an_invoice_once_on_each_store() {
    let directory = tempfile::tempdir().unwrap();
    pays_an_invoice_and_sends_a_receipt_once(&sqlite(&directory), &[]).await;
    pays_an_invoice_and_sends_a_receipt_once("memory", &[]).await;
    let schema = format!("invoices_test_{}", std::process::id());
    pays_an_invoice_and_sends_a_receipt_once(&database_url(), &["--schema", &schema]).await;
}
