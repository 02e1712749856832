//! The shapes of docs/migrating.md, each before and after: how many lines change, and what the effect
//! of a call is that is sent twice.

mod layer {
    pub(super) mod after;
    // The attribute and the layer protect the same server.
    pub(super) use super::outside::before;
}
mod outside {
    pub(super) mod after;
    pub(super) mod before;
}
mod services {
    pub(super) mod after;
    pub(super) mod before;
}
mod statements {
    pub(super) mod after;
    pub(super) mod before;
}
mod transaction {
    pub(super) mod after;
    pub(super) mod before;
}

use std::sync::atomic::Ordering;

use mcp_idempotent_tests::{
    client::{CallExt as _, Client, call},
    database::{Database as _, Postgres},
};
use rmcp::ServerHandler;
use serde_json::json;
use similar::{ChangeTag, TextDiff};
use sqlx::PgPool;

use crate::tree::read;

/// The changes that one tool may take.
const LINES_OF_A_TOOL: usize = 5;
/// The changes that a server may take once.
const LINES_OF_A_SERVER: usize = 20;

/// A database with the tables that the author has, and a pool to it.
async fn database() -> (Postgres, PgPool) {
    let database = Postgres::create().await;
    for table in ["charges", "totals"] {
        database
            .execute(&format!(
                "CREATE TABLE {table} (customer text, cents bigint)"
            ))
            .await;
    }
    let path = format!("SET search_path = {}", database.schema());
    let pool = database.pool_set_up_by(4, path);
    (database, pool)
}

/// Sends one call under one key to two servers, one after the other.
async fn send_twice(first: impl ServerHandler, second: impl ServerHandler) {
    let arguments = json!({ "customer": "Ann", "cents": 1999 });
    let charge = call("charge", arguments).with_key("k");
    let sent = Client::of(first).await.call(charge.clone()).await;
    let again = Client::of(second).await.call(charge).await;
    assert_eq!(sent.success(), again.success());
}

macro_rules! a_tool_that_writes_charges_twice_before_and_once_after {
    ($($name:ident: $shape:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            use $shape::{after, before};
            let (charged_before, pool) = database().await;
            send_twice(before::server(pool.clone()), before::server(pool)).await;
            let count = "SELECT count(*) FROM charges";
            assert_eq!(charged_before.integer(count).await, 2);

            let (charged_after, pool) = database().await;
            let schema = charged_after.schema();
            let first = after::server(pool.clone(), schema).await.unwrap();
            let second = after::server(pool, schema).await.unwrap();
            send_twice(first, second).await;
            assert_eq!(charged_after.integer(count).await, 1);
        }
    )*};
}

a_tool_that_writes_charges_twice_before_and_once_after! {
    a_tool_with_its_own_statements_charges_twice_before_and_once_after: statements;
    a_tool_whose_services_take_a_pool_charges_twice_before_and_once_after: services;
    a_tool_that_begins_and_commits_charges_twice_before_and_once_after: transaction;
}

macro_rules! a_tool_that_acts_outside_acts_twice_before_and_once_after {
    ($($name:ident: $shape:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            use $shape::{after, before};
            let bank = before::Bank::default();
            send_twice(before::server(bank.clone()), before::server(bank.clone())).await;
            assert_eq!(bank.load(Ordering::Relaxed), 2);

            let (database, pool) = database().await;
            let (bank, schema) = (after::Bank::default(), database.schema());
            let server = async || after::server(bank.clone(), pool.clone(), schema).await;
            send_twice(server().await.unwrap(), server().await.unwrap()).await;
            assert_eq!(bank.load(Ordering::Relaxed), 1);
        }
    )*};
}

a_tool_that_acts_outside_acts_twice_before_and_once_after! {
    a_tool_that_acts_outside_acts_twice_before_and_once_after: outside;
    a_server_behind_the_layer_acts_twice_before_and_once_after: layer;
}

/// The two halves of a server: what is written once, and its tool.
fn halves(shape: &str, time: &str) -> [String; 2] {
    let shape = match (shape, time) {
        ("layer", "before") => "outside",
        _ => shape,
    };
    let text = read(&format!("tests/tests/e2e/migrating/{shape}/{time}.rs"));
    let (once, tool) = text.split_once("// The tool, and").expect(shape);
    [once.to_owned(), tool.to_owned()]
}

/// How many lines are new or different.
fn changed(before: &str, after: &str) -> usize {
    let lines = TextDiff::from_lines(before, after);
    let changed = |tag| {
        let changes = lines.iter_all_changes();
        changes
            .filter(|change| change.tag() == tag && !change.value().trim().is_empty())
            .count()
    };
    changed(ChangeTag::Insert).max(changed(ChangeTag::Delete))
}

#[test]
fn each_shape_takes_at_most_five_changed_lines_a_tool_and_twenty_once() {
    for shape in ["statements", "services", "transaction", "outside", "layer"] {
        let [once, tool] = halves(shape, "before");
        let [once_after, tool_after] = halves(shape, "after");
        let once = changed(&once, &once_after);
        let tool = changed(&tool, &tool_after);
        println!("{shape}: {tool} lines of the tool, {once} once");
        assert!(tool <= LINES_OF_A_TOOL, "{shape}: {tool} lines of the tool");
        assert!(once <= LINES_OF_A_SERVER, "{shape}: {once} lines once");
        assert!(once > 0, "{shape}: nothing changes");
    }
}

/// A page that says what changes must say what really changes.
#[test]
fn the_page_on_migrating_shows_lines_of_the_servers_before_and_after() {
    let sources = |time| {
        ["statements", "services", "transaction", "outside", "layer"]
            .map(|shape| halves(shape, time).concat())
            .concat()
            .split_whitespace()
            .collect::<String>()
    };
    let (before, after) = (sources("before"), sources("after"));
    let page = read("docs/migrating.md");
    let mut seen = 0;
    for block in page.split("```diff\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            let source = match line.chars().next() {
                Some('+') => &after,
                Some('-') => &before,
                _ => continue,
            };
            let code: String = line[1..].split_whitespace().collect();
            assert!(source.contains(&code), "not in any server: {line}");
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} changed lines are shown");
}
