//! Runs the examples, as a reader would.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod check;
mod command_line;
mod hello;
mod http_postgres;
mod other_drivers;
mod outside;
mod wire_check;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use mcp_idempotent_examples::payments::charge::USER_HEADER;
use mcp_idempotent_tower::wire;
use rmcp::{
    Peer, RoleClient, ServiceExt as _,
    model::{CallToolRequestParams, CallToolResult, RequestMetaObject, Tool},
    service::RunningService,
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// The built example. `cargo test` builds the examples of a package before its tests, but
/// `cargo test --test it` does not.
fn example(name: &str) -> Command {
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile
        .join("examples")
        .join(format!("{name}{}", env::consts::EXE_SUFFIX));
    assert!(
        is_fresh(&program),
        "{} is not built from the sources as they are: run `cargo build --examples`",
        program.display()
    );
    let mut command = Command::new(program);
    command.env_remove("RUST_LOG").kill_on_drop(true);
    command
}

/// Whether a program is there and newer than each source that Cargo says it is made of.
fn is_fresh(program: &Path) -> bool {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let Ok(built) = modified(program) else {
        return false;
    };
    let made_of = fs::read_to_string(program.with_extension("d")).unwrap();
    let (_, sources) = made_of.split_once(": ").unwrap();
    sources
        .replace("\\ ", "\0")
        .split_whitespace()
        .all(|source| {
            let source = source.replace('\0', " ");
            modified(Path::new(&source)).is_ok_and(|modified| modified <= built)
        })
}

fn database_url() -> String {
    env::var("DATABASE_URL")
        .expect("DATABASE_URL names no Postgres: run the tests by `tests/run`, which provides one")
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn run(name: &str, arguments: &[&str]) -> Ended {
    let output = example(name).args(arguments).stdin(Stdio::null()).output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

// --- retry_storm -------------------------------------------------------------------------------

/// `(ran, charged)` of the unprotected and of the protected tool, for each line of the table.
fn counts(report: &str) -> Vec<[(u32, u32); 2]> {
    report
        .lines()
        .filter_map(|line| {
            let (_case, sides) = line.split_once('│')?;
            let (unprotected, protected) = sides.split_once('│')?;
            Some([side(unprotected)?, side(protected)?])
        })
        .collect()
}

fn side(text: &str) -> Option<(u32, u32)> {
    let mut words = text.split_whitespace();
    let ran = words.next()?.parse().ok()?;
    let charged = words.next()?.parse().ok()?;
    Some((ran, charged))
}

fn shows_one_effect_per_line(ended: &Ended) {
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let expected = [
        [(5, 5), (1, 1)],
        [(5, 5), (1, 1)],
        [(2, 2), (1, 1)],
        [(2, 2), (2, 1)],
        [(2, 2), (1, 1)],
        [(2, 2), (1, 1)],
    ];
    assert_eq!(counts(&ended.stdout), expected, "{}", ended.stdout);
    assert!(ended.stdout.contains("key_conflict"), "{}", ended.stdout);
    assert!(ended.stdout.contains("Added latency"), "{}", ended.stdout);
    for line in ended.stdout.lines() {
        assert!(line.chars().count() <= 100, "wider than 100: {line}");
    }
    assert_eq!(ended.stderr, "");
}

#[tokio::test]
async fn retry_storm_shows_one_effect_per_line_on_sqlite() {
    shows_one_effect_per_line(&run("retry_storm", &[]).await);
}

#[tokio::test]
async fn retry_storm_shows_one_effect_per_line_on_postgres() {
    let url = database_url();
    shows_one_effect_per_line(&run("retry_storm", &["--store", &url]).await);
}

// --- payments ----------------------------------------------------------------------------------

type Client = RunningService<RoleClient, ()>;

/// `payments` over stdio.
async fn over_stdio(arguments: &[&str]) -> (Client, Child) {
    let mut payments = example("payments");
    payments.args(arguments);
    connect(payments).await
}

/// Starts a server, and speaks to it over stdio.
async fn connect(mut server: Command) -> (Client, Child) {
    let mut server = server
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
    let client = timeout(PATIENCE, ().serve(pipes)).await.unwrap().unwrap();
    (client, server)
}

/// A server over HTTP, and its address.
async fn over_http(arguments: &[&str]) -> (String, Child) {
    let mut server = example("payments")
        .args(arguments)
        .args(["--http", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
    let line = line.expect("the server says where it listens");
    let address = line.strip_prefix("listening on ").expect(&line).to_owned();
    // It may say more, and must not find nobody who reads that.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (address, server)
}

async fn http_client(address: &str, user: &'static str) -> Client {
    let headers = [(
        USER_HEADER.try_into().unwrap(),
        http::HeaderValue::from_static(user),
    )];
    let config = StreamableHttpClientTransportConfig::with_uri(address)
        .custom_headers(headers.into_iter().collect());
    let transport = StreamableHttpClientTransport::from_config(config);
    timeout(PATIENCE, ().serve(transport))
        .await
        .unwrap()
        .unwrap()
}

async fn call(peer: &Peer<RoleClient>, tool: &'static str, arguments: Value) -> CallToolResult {
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = arguments.as_object().cloned();
    finish(peer, params).await
}

async fn charge(peer: &Peer<RoleClient>, key: &str) -> CallToolResult {
    let arguments = json!({ "customer": "ada", "amount_cents": 1999 });
    call_with_key(peer, "charge_card", arguments, key).await
}

async fn call_with_key(
    peer: &Peer<RoleClient>,
    tool: &'static str,
    arguments: Value,
    key: &str,
) -> CallToolResult {
    let mut meta = RequestMetaObject::new();
    meta.insert("idempotency-key".into(), key.into());
    let mut params = CallToolRequestParams::new(tool);
    params.arguments = arguments.as_object().cloned();
    params.meta = Some(meta);
    finish(peer, params).await
}

async fn finish(peer: &Peer<RoleClient>, params: CallToolRequestParams) -> CallToolResult {
    let answer = timeout(PATIENCE, peer.call_tool(params)).await;
    answer.unwrap().unwrap()
}

fn is_replay(result: &CallToolResult) -> bool {
    let meta = result.meta.as_ref();
    meta.is_some_and(|meta| meta.contains_key(wire::REPLAYED))
}

async fn charges(peer: &Peer<RoleClient>) -> usize {
    let listed = call(peer, "list_charges", json!({ "customer": "ada" })).await;
    let structured = listed.structured_content.unwrap();
    structured["charges"].as_array().unwrap().len()
}

fn tool<'a>(tools: &'a [Tool], name: &str) -> &'a Tool {
    tools.iter().find(|tool| tool.name == name).unwrap()
}

fn mode(tool: &Tool) -> Option<&str> {
    tool.meta.as_ref()?.get(wire::CONTRACT)?["mode"].as_str()
}

/// What every one of these servers does, whatever keeps its charges.
async fn lists_its_tools_and_charges_once(client: &Client, expected_mode: &str) {
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(mode(tool(&tools, "charge_card")), Some(expected_mode));
    assert_eq!(mode(tool(&tools, "charge_card_unprotected")), None);
    let read_only = tool(&tools, "list_charges").annotations.as_ref().unwrap();
    assert_eq!(read_only.read_only_hint, Some(true));

    let first = charge(client.peer(), "order-1").await;
    let retry = charge(client.peer(), "order-1").await;
    assert_eq!(first.is_error, Some(false), "{first:?}");
    assert!(!is_replay(&first), "{first:?}");
    assert!(is_replay(&retry), "{retry:?}");
    assert!(retry.structured_content.is_some());
    assert_eq!(first.structured_content, retry.structured_content);
    assert_eq!(charges(client.peer()).await, 1);

    // A new key is a new intent, and without protection so is every call.
    assert!(!is_replay(&charge(client.peer(), "order-2").await));
    assert_eq!(charges(client.peer()).await, 2);
    let arguments = json!({ "customer": "ada", "amount_cents": 1999 });
    for _ in 0..2 {
        call(client.peer(), "charge_card_unprotected", arguments.clone()).await;
    }
    assert_eq!(charges(client.peer()).await, 4);
}

fn sqlite(directory: &tempfile::TempDir) -> String {
    let file: PathBuf = directory.path().join("payments.db");
    format!("sqlite://{}", file.display())
}

#[tokio::test]
async fn payments_over_stdio_on_sqlite_charges_once() {
    let directory = tempfile::tempdir().unwrap();
    let (client, _server) = over_stdio(&["--store", &sqlite(&directory)]).await;
    lists_its_tools_and_charges_once(&client, "transaction").await;
}

#[tokio::test]
async fn payments_over_stdio_on_postgres_charges_once() {
    let schema = format!("payments_test_{}", std::process::id());
    let url = database_url();
    let (client, _server) = over_stdio(&["--store", &url, "--schema", &schema]).await;
    lists_its_tools_and_charges_once(&client, "transaction").await;
}

#[tokio::test]
async fn payments_over_stdio_in_memory_charges_once() {
    let (client, _server) = over_stdio(&["--store", "memory"]).await;
    lists_its_tools_and_charges_once(&client, "lease").await;
}

#[tokio::test]
async fn payments_over_http_charges_once_for_each_user() {
    let directory = tempfile::tempdir().unwrap();
    let (address, _server) = over_http(&["--store", &sqlite(&directory)]).await;
    let ada = http_client(&address, "ada").await;
    lists_its_tools_and_charges_once(&ada, "transaction").await;

    // The same user in another session is given the receipt; another user's key is another key.
    let ada_again = http_client(&address, "ada").await;
    assert!(is_replay(&charge(ada_again.peer(), "order-1").await));
    let bob = http_client(&address, "bob").await;
    assert!(!is_replay(&charge(bob.peer(), "order-1").await));
}

#[tokio::test]
async fn payments_that_was_restarted_still_knows_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(&directory);
    let (client, mut server) = over_stdio(&["--store", &store]).await;
    let first = charge(client.peer(), "order-1").await;
    client.cancel().await.unwrap();
    let ended = timeout(PATIENCE, server.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");

    let (client, _server) = over_stdio(&["--store", &store]).await;
    let retry = charge(client.peer(), "order-1").await;
    assert!(is_replay(&retry), "{retry:?}");
    assert_eq!(first.structured_content, retry.structured_content);
}
