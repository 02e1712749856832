//! The program as it is started and ended.

use serde_json::json;

use super::program::{PLAIN, Place, Program, charge, proxy, text_of};

#[tokio::test]
async fn five_identical_calls_through_the_proxy_charge_once_and_directly_five_times() {
    for (is_proxied, expected) in [(false, 5), (true, 1)] {
        let place = Place::new();
        let mut server = if is_proxied {
            place.start(&[])
        } else {
            Program::start(PLAIN, [place.ledger()])
        };
        for id in 0..5 {
            let told = server.call(&charge(id, json!({ "cents": 100 }))).await;
            assert_eq!((&told["id"], text_of(&told)), (&json!(id), "charged 100"));
        }
        assert_eq!(place.charges().len(), expected);
    }
}

#[tokio::test]
async fn the_proxy_ends_as_its_server_ends() {
    let place = Place::new();
    let mut proxy = place.start(&[]);
    proxy.call(&charge(1, json!({ "cents": 1 }))).await;
    proxy.close();
    assert_eq!(proxy.end().await.code(), Some(7));
    // The server's standard error is the proxy's.
    assert!(proxy.complaints().await.contains("plain-server: "));

    // A signal that the proxy gets is the server's, and its death by it is said as a shell says it.
    let mut proxy = place.start(&[]);
    proxy.call(&charge(1, json!({ "cents": 1 }))).await;
    proxy.signal("TERM").await;
    assert_eq!(proxy.next().await, None);
    assert_eq!(proxy.end().await.code(), Some(128 + 15));
}

#[tokio::test]
async fn a_wrong_option_says_what_to_type() {
    for (arguments, expected) in [
        (
            &["--store", "mysql://x", "--", "x"][..],
            "type `memory`, `sqlite://FILE`, `postgres://USER@HOST/DATABASE` or `redis://HOST`",
        ),
        (
            &["--tool", "pay=once", "--", "x"],
            "`once` is not a rule; type NAME=RULE",
        ),
        (
            &["--tool", "pay=required,pass", "--", "x"],
            "`required,pass` contradicts itself; type `pass` alone",
        ),
        (
            &["--tool", "pay=retry,error", "--", "x"],
            "`retry,error` contradicts itself",
        ),
        (
            &[
                "--listen",
                "localhost:1",
                "--upstream",
                "http://127.0.0.1:1",
            ],
            "type an IP address and a port, such as 127.0.0.1:8080",
        ),
        (
            &["python3", "server.py"],
            "the server's command comes after `--`",
        ),
        (
            &["--run-id", "my desk", "--", "x"],
            "write one word, such as \"desk-1\"",
        ),
        (
            &["--key-argument", "id", "--", "x"],
            "write \"/id\" for the top-level argument",
        ),
        (&["--log", "=!", "--", "x"], "type a level such as `info`"),
        (&["--ttl-ms", "0", "--", "x"], "--ttl-ms"),
        (&["--stor", "memory", "--", "x"], "'--store'"),
        (&["--", "/no/such/server"], "cannot start /no/such/server"),
        (&[], "mcp-idempotent [OPTIONS] -- COMMAND [ARGS]"),
    ] {
        let mut program = Program::start(proxy(), arguments);
        let complaint = program.complaints().await;
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
        let code = program.end().await.code();
        // The engine finds these.
        let is_found_late = ["--run-id", "--key-argument", "--"]
            .contains(&arguments.first().copied().unwrap_or_default());
        assert_eq!(
            code,
            Some(if is_found_late { 1 } else { 2 }),
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["--listen", &address, "--upstream", "http://127.0.0.1:1"];
    let mut program = Program::start(proxy(), [&arguments[..], &["--scope", "all"]].concat());
    let complaint = program.complaints().await;
    let expected = format!("cannot listen at {address}: ");
    assert!(complaint.contains(&expected), "{complaint}");
}

#[tokio::test]
async fn the_help_says_what_the_proxy_promises() {
    let mut program = Program::start(proxy(), ["--help"]);
    let mut help = String::new();
    tokio::io::AsyncReadExt::read_to_string(program.output(), &mut help)
        .await
        .unwrap();
    insta::assert_snapshot!(help);
}

#[tokio::test]
async fn a_proxy_over_http_asks_whose_calls_it_is_given() {
    let address = ["--listen", "127.0.0.1:0", "--upstream"];
    for (url, expected) in [
        ("http://127.0.0.1:1", "--scope-header NAME"),
        ("https://127.0.0.1:1", "--scope-header NAME"),
        ("ftp://127.0.0.1:1", "type http://HOST:PORT"),
        ("http://127.0.0.1:1/mcp", "without a path"),
    ] {
        let mut program = Program::start(proxy(), [&address[..], &[url]].concat());
        let complaint = program.complaints().await;
        assert!(complaint.contains(expected), "{url}: {complaint}");
    }
}
