//! A server process, and the way to it over either transport.

use std::{os::unix::process::ExitStatusExt as _, path::Path, process::Stdio, time::Duration};

use mcp_idempotent_tests::{
    client::{Answer, Client},
    kit::relay::Relay,
};
use rmcp::model::CallToolRequestParams;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::Mutex,
};

use crate::{
    row::Transport,
    server::{SERVE, Settings},
};

/// It is killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Mutex<Child>,
    process: u32,
    link: Link,
    /// In front of it, over HTTP.
    pub(crate) callers: Option<Relay>,
}

#[derive(Debug)]
enum Link {
    Stdio(Client),
    Http {
        client: reqwest::Client,
        url: String,
    },
}

impl Server {
    /// Starts one that is known to Postgres as `name`. It is this program, or another build of it.
    pub(crate) async fn start(
        name: &str,
        settings: &Settings,
        with_relay: bool,
        program: Option<&Path>,
    ) -> Self {
        let settings_text = serde_json::to_string(settings).expect("plain values");
        let this = || std::env::current_exe().expect("this program");
        let mut child = Command::new(program.map_or_else(this, Path::to_owned))
            .args([SERVE, &settings_text])
            .env("PGAPPNAME", name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program starts");
        let stdout = child.stdout.take().expect("piped");
        let stdin = child.stdin.take().expect("piped");
        let mut callers = None;
        let link = match settings.transport {
            Transport::Stdio => {
                let client = Client::connect(stdout, stdin).await;
                Link::Stdio(client.expect("the server starts"))
            }
            Transport::Http => {
                let line = BufReader::new(stdout).lines().next_line().await;
                let line = line.expect("a pipe").expect("the server starts");
                let mut port = line.parse().expect("a port");
                if with_relay {
                    let relay = callers.insert(Relay::start_to_any(port));
                    port = relay.port();
                }
                let client = reqwest::Client::builder()
                    .no_proxy()
                    .pool_max_idle_per_host(0)
                    .build();
                Link::Http {
                    client: client.expect("settings"),
                    url: format!("http://127.0.0.1:{port}/mcp"),
                }
            }
        };
        Self {
            process: child.id().expect("it runs"),
            child: Mutex::new(child),
            link,
            callers,
        }
    }

    /// `None`: there was no answer.
    pub(crate) async fn call(
        &self,
        params: CallToolRequestParams,
        patience: Duration,
    ) -> Option<Answer> {
        let answer = async {
            match &self.link {
                Link::Stdio(client) => client.try_call(params).await.ok(),
                Link::Http { client, url } => post(client, url, &params).await,
            }
        };
        tokio::time::timeout(patience, answer).await.ok().flatten()
    }

    /// SIGKILL. Says whether that is what it died of.
    pub(crate) async fn kill(&self) -> bool {
        const SIGKILL: i32 = 9;
        let mut child = self.child.lock().await;
        drop(child.start_kill());
        let status = child.wait().await.expect("our child");
        status.signal() == Some(SIGKILL)
    }

    /// Ends the connection over stdio, with which the server ends. Says whether it did so by itself.
    pub(crate) async fn hang_up(&self) -> bool {
        if let Link::Stdio(client) = &self.link {
            client.hang_up();
        }
        let mut child = self.child.lock().await;
        let ended = tokio::time::timeout(Duration::from_secs(20), child.wait()).await;
        ended.is_ok_and(|status| status.expect("our child").success())
    }

    /// SIGSTOP. Says whether the process is stopped.
    pub(crate) async fn freeze(&self) -> bool {
        self.signal("STOP").await;
        let status = format!("/proc/{}/status", self.process);
        for _ in 0..200 {
            match std::fs::read_to_string(&status) {
                Ok(status) if status.contains("State:\tT") => return true,
                // There is no such file on other systems.
                Err(_) => return true,
                Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        false
    }

    /// SIGCONT.
    pub(crate) async fn go_on(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name])
            .arg(self.process.to_string())
            .status()
            .await;
        assert!(status.is_ok_and(|status| status.success()), "SIG{name}");
    }
}

/// As the newest revision writes it, without a session.
async fn post(
    client: &reqwest::Client,
    url: &str,
    params: &CallToolRequestParams,
) -> Option<Answer> {
    const REVISION: &str = "2026-07-28";
    let mut params = json!(params);
    let meta = &mut params["_meta"];
    meta["io.modelcontextprotocol/protocolVersion"] = REVISION.into();
    meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "faults", "version": "1" });
    meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let name = params["name"].as_str().unwrap_or_default().to_owned();
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let request = client
        .post(url)
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", REVISION)
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", name)
        .json(&body);
    let line = request.send().await.ok()?.text().await.ok()?;
    let mut json: Value = serde_json::from_str(&line).ok()?;
    let object = json.as_object_mut()?;
    object.remove("id");
    object.remove("jsonrpc");
    Some(Answer { line, json })
}
