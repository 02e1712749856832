//! An MCP server over stdio that knows nothing of idempotency, for tests of the proxy in front of it.
//!
//! `plain-server FILE` appends a line to `FILE` for each charge. Its tools:
//!
//! - `charge_card`: charges `cents`. With `hold` it answers only once a file of that name exists; with `die` it
//!   ends between the charge and the answer.
//! - `balance`: only reads.
//!
//! It drops the answers of cancelled requests, as official servers do, and ends with code 7.

use std::{
    collections::HashSet,
    env,
    fs::{self, OpenOptions},
    io::{self, BufRead as _, Write as _},
    path::Path,
    process::exit,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

type Cancelled = Arc<Mutex<HashSet<String>>>;

fn main() -> io::Result<()> {
    let ledger: Arc<str> = env::args().nth(1).unwrap_or_default().into();
    writeln!(io::stderr(), "plain-server: {}", env::vars().count())?;
    let cancelled = Cancelled::default();
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else {
            continue;
        };
        if message["method"] == "notifications/cancelled" {
            let id = message["params"]["requestId"].to_string();
            cancelled.lock().expect("no panic").insert(id);
            continue;
        }
        if message.get("id").is_none() {
            continue;
        }
        let (ledger, cancelled) = (Arc::clone(&ledger), Arc::clone(&cancelled));
        thread::spawn(move || answer(&message, &ledger, &cancelled));
    }
    exit(7);
}

fn answer(request: &Value, ledger: &str, cancelled: &Cancelled) -> io::Result<()> {
    let params = &request["params"];
    let result = match (request["method"].as_str(), params["name"].as_str()) {
        (Some("initialize"), _) => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "plain", "version": "1" },
        }),
        (Some("tools/list"), _) => json!({ "tools": [
            { "name": "charge_card", "inputSchema": { "type": "object" } },
            {
                "name": "balance",
                "inputSchema": { "type": "object" },
                "annotations": { "readOnlyHint": true },
            },
        ] }),
        (Some("tools/call"), Some("charge_card")) => {
            charge(&params["arguments"], ledger)?;
            text(&format!("charged {}", params["arguments"]["cents"]))
        }
        (Some("tools/call"), Some("balance")) => {
            text(&fs::read_to_string(ledger)?.lines().count().to_string())
        }
        _ => json!({}),
    };
    if cancelled
        .lock()
        .expect("no panic")
        .contains(&request["id"].to_string())
    {
        return Ok(());
    }
    let answer = json!({ "result": result, "jsonrpc": "2.0", "id": request["id"] });
    writeln!(io::stdout(), "{answer}")
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn charge(arguments: &Value, ledger: &str) -> io::Result<()> {
    let mut ledger = OpenOptions::new().append(true).create(true).open(ledger)?;
    writeln!(ledger, "{}", arguments["cents"])?;
    if let Some(hold) = arguments["hold"].as_str() {
        while !Path::new(hold).exists() {
            thread::sleep(Duration::from_millis(5));
        }
    }
    if arguments["die"] == true {
        exit(9);
    }
    Ok(())
}
