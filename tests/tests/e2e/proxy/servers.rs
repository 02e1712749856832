//! Reference servers that nobody touched: with and without the proxy they answer alike.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use serde_json::{Value, json};

use super::program::{Program, proxy};

/// Where `tests/provide/servers.sh` put them.
pub(super) fn provided(path: &str) -> String {
    let directory = env::var("MCP_IDEMPOTENT_TEST_SERVERS").unwrap_or_default();
    let program = PathBuf::from(directory).join(path);
    assert!(
        program.exists(),
        "{} is missing: run the tests with tests/run, which installs the reference servers",
        program.display()
    );
    program.to_str().unwrap().to_owned()
}

/// A client that answers what the server asks it, and keeps the answers to its own requests.
struct Conversation {
    server: Program,
    requests: u32,
    answers: Vec<(String, Value)>,
}

impl Conversation {
    /// Each answer of the server, with the proxy or without, under what was asked.
    async fn with(command: &[String], is_proxied: bool) -> Self {
        let server = if is_proxied {
            Program::start(proxy(), [&["--".to_owned()], command].concat())
        } else {
            Program::start(&command[0], &command[1..])
        };
        let mut this = Self {
            server,
            requests: 0,
            answers: Vec::new(),
        };
        let capabilities = json!({ "sampling": {}, "elicitation": {}, "roots": {} });
        let hello = json!({
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "clientInfo": { "name": "tests", "version": "1" },
        });
        this.ask("initialize", hello).await;
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        this.server.say(&initialized).await;
        this
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        let asked = format!("{method} {params}");
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.server.say(&request).await;
        loop {
            let heard = self.server.hear().await;
            if let Some(method) = heard["method"].as_str() {
                if heard.get("id").is_some() {
                    let answer =
                        json!({ "jsonrpc": "2.0", "id": heard["id"], "result": told(method) });
                    self.server.say(&answer).await;
                }
                continue;
            }
            assert_eq!(heard["id"], id, "{heard}");
            self.answers.push((asked, masked(&heard)));
            return heard["result"].clone();
        }
    }

    /// Asks for all that the server lists, and calls all of its tools.
    async fn whole(&mut self, arguments: &BTreeMap<&str, Value>) {
        for list in ["tools", "resources", "resources/templates", "prompts"] {
            let method = format!("{list}/list");
            let listed = self.ask(&method, json!({})).await;
            for item in listed["resources"].as_array().into_iter().flatten() {
                self.ask("resources/read", json!({ "uri": item["uri"] }))
                    .await;
            }
            for item in listed["prompts"].as_array().into_iter().flatten() {
                let named = item["arguments"].as_array().into_iter().flatten();
                let filled: serde_json::Map<_, _> = named
                    .map(|argument| (argument["name"].as_str().unwrap().to_owned(), json!("1")))
                    .collect();
                let params = json!({ "name": item["name"], "arguments": filled });
                self.ask("prompts/get", params).await;
            }
            for item in listed["tools"].as_array().into_iter().flatten() {
                let name = item["name"].as_str().unwrap();
                let arguments = arguments.get(name).cloned().unwrap_or(json!({}));
                self.ask(
                    "tools/call",
                    json!({ "name": name, "arguments": arguments }),
                )
                .await;
            }
        }
    }
}

/// What the client tells a server that asks it.
fn told(method: &str) -> Value {
    match method {
        "sampling/createMessage" => json!({
            "role": "assistant",
            "content": { "type": "text", "text": "said" },
            "model": "none",
        }),
        "elicitation/create" => json!({ "action": "decline" }),
        "roots/list" => json!({ "roots": [] }),
        _ => json!({}),
    }
}

/// An answer with its numbers masked: times, sizes and addresses differ from run to run.
pub(super) fn masked(answer: &Value) -> Value {
    let text = answer["result"].to_string() + &answer["error"].to_string();
    let mut masked = String::new();
    for letter in text.chars() {
        match letter {
            '0'..='9' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            letter => masked.push(letter),
        }
    }
    masked.into()
}

/// Both conversations are the same, and have at least so many answers.
async fn is_transparent(
    command: &[String],
    arguments: &[(&str, Value)],
    least: usize,
    before: impl Fn(),
) {
    let arguments = arguments.iter().cloned().collect();
    let mut answers = Vec::new();
    for is_proxied in [false, true] {
        before();
        let mut conversation = Conversation::with(command, is_proxied).await;
        conversation.whole(&arguments).await;
        answers.push(conversation.answers);
    }
    let proxied = answers.pop().unwrap();
    let direct = answers.pop().unwrap();
    assert!(direct.len() >= least, "only {} answers", direct.len());
    for (direct, proxied) in direct.iter().zip(&proxied) {
        assert_eq!(direct, proxied);
    }
    assert_eq!(direct.len(), proxied.len());
}

#[tokio::test]
async fn the_everything_server_answers_alike_with_and_without_the_proxy() {
    let command = [provided("node_modules/.bin/mcp-server-everything")];
    let arguments = [
        ("echo", json!({ "message": "hello" })),
        ("get-sum", json!({ "a": 1, "b": 2 })),
        (
            "get-annotated-message",
            json!({ "messageType": "error", "includeImage": true }),
        ),
        ("get-structured-content", json!({ "location": "Chicago" })),
        ("get-resource-links", json!({ "count": 3 })),
        (
            "get-resource-reference",
            json!({ "resourceType": "Text", "resourceId": 1 }),
        ),
        (
            "trigger-long-running-operation",
            json!({ "duration": 0.1, "steps": 2 }),
        ),
        (
            "trigger-sampling-request",
            json!({ "prompt": "say", "maxTokens": 5 }),
        ),
    ];
    is_transparent(&command, &arguments, 20, || ()).await;
}

#[tokio::test]
async fn the_memory_server_answers_alike_with_and_without_the_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory
        .path()
        .join("memory.jsonl")
        .to_str()
        .unwrap()
        .to_owned();
    let server = provided("node_modules/.bin/mcp-server-memory");
    let command = ["env".to_owned(), format!("MEMORY_FILE_PATH={file}"), server];
    let entity =
        |name: &str| json!({ "name": name, "entityType": "city", "observations": ["old"] });
    let relation = json!({ "relations": [{ "from": "a", "to": "b", "relationType": "near" }] });
    let arguments = [
        (
            "create_entities",
            json!({ "entities": [entity("a"), entity("b")] }),
        ),
        ("create_relations", relation.clone()),
        (
            "add_observations",
            json!({ "observations": [{ "entityName": "a", "contents": ["new"] }] }),
        ),
        (
            "delete_observations",
            json!({ "deletions": [{ "entityName": "a", "observations": ["old"] }] }),
        ),
        ("delete_relations", relation),
        ("delete_entities", json!({ "entityNames": ["b"] })),
        ("search_nodes", json!({ "query": "a" })),
        ("open_nodes", json!({ "names": ["a"] })),
    ];
    is_transparent(&command, &arguments, 11, || drop(fs::remove_file(&file))).await;
}

#[tokio::test]
async fn the_filesystem_server_answers_alike_with_and_without_the_proxy() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("files");
    let path = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let command = [
        provided("node_modules/.bin/mcp-server-filesystem"),
        root.to_str().unwrap().to_owned(),
    ];
    let notes = json!({ "path": path("notes.txt") });
    let arguments = [
        ("read_file", notes.clone()),
        ("read_text_file", notes.clone()),
        ("read_media_file", notes.clone()),
        (
            "read_multiple_files",
            json!({ "paths": [path("notes.txt"), path("none")] }),
        ),
        (
            "write_file",
            json!({ "path": path("new.txt"), "content": "one\ntwo\n" }),
        ),
        (
            "edit_file",
            json!({ "path": path("notes.txt"), "edits": [{ "oldText": "old", "newText": "new" }] }),
        ),
        ("create_directory", json!({ "path": path("folder") })),
        ("list_directory", json!({ "path": path("") })),
        ("list_directory_with_sizes", json!({ "path": path("") })),
        ("directory_tree", json!({ "path": path("") })),
        (
            "move_file",
            json!({ "source": path("new.txt"), "destination": path("moved.txt") }),
        ),
        (
            "search_files",
            json!({ "path": path(""), "pattern": "*.txt" }),
        ),
    ];
    let before = || {
        drop(fs::remove_dir_all(&root));
        fs::create_dir(&root).unwrap();
        fs::write(root.join("notes.txt"), "old\n").unwrap();
    };
    // Its times are those of each run; the rest of it is told by other tools.
    let arguments = [
        &arguments[..],
        &[("get_file_info", json!({ "path": path("none") }))],
    ]
    .concat();
    is_transparent(&command, &arguments, 14, before).await;
}

#[tokio::test]
async fn the_time_server_in_python_answers_alike_with_and_without_the_proxy() {
    let command = [
        provided("py/bin/mcp-server-time"),
        "--local-timezone=UTC".to_owned(),
    ];
    let zones =
        json!({ "source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Kathmandu" });
    let arguments = [
        ("get_current_time", json!({ "timezone": "Asia/Kathmandu" })),
        ("convert_time", zones),
    ];
    is_transparent(&command, &arguments, 5, || ()).await;
}
