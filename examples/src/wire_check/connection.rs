//! A connection that sends bytes as it is told, which no client library does.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, bail};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

/// No answer takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the server is.
#[derive(Debug)]
pub(super) enum Target {
    Url(String, HeaderMap),
    Command(Vec<String>),
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct Connection {
    kind: Kind,
    requests: u64,
    /// The answer to `initialize`.
    pub(super) hello: Value,
}

#[derive(Debug)]
enum Kind {
    Http(reqwest::Client, String, HeaderMap),
    Stdio(Box<Pipes>),
}

#[derive(Debug)]
struct Pipes {
    // Ends with the connection.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Target {
    pub(super) fn new(words: Vec<String>, headers: Vec<(String, String)>) -> Result<Self, String> {
        let Some(first) = words.first() else {
            return Err("a URL or a command is missing".to_owned());
        };
        if !first.starts_with("http://") && !first.starts_with("https://") {
            return Ok(Self::Command(words));
        }
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().map_err(|_| format!("{name:?} is no header"))?;
            let value =
                HeaderValue::from_str(&value).map_err(|_| format!("{name} is not ASCII"))?;
            map.insert(name, value);
        }
        Ok(Self::Url(first.clone(), map))
    }

    pub(super) const fn is_http(&self) -> bool {
        matches!(self, Self::Url(..))
    }

    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        let kind = match self {
            Self::Url(url, headers) => {
                let client = reqwest::Client::builder().no_proxy().build()?;
                Kind::Http(client, url.clone(), headers.clone())
            }
            Self::Command(words) => {
                let mut child = Command::new(&words[0])
                    .args(&words[1..])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .kill_on_drop(true)
                    .spawn()
                    .with_context(|| format!("cannot start {}", words[0]))?;
                let (input, output) = child
                    .stdin
                    .take()
                    .zip(child.stdout.take())
                    .context("no pipes")?;
                let output = BufReader::new(output).lines();
                Kind::Stdio(Box::new(Pipes {
                    _child: child,
                    input,
                    output,
                }))
            }
        };
        let mut connection = Connection {
            kind,
            requests: 0,
            hello: Value::Null,
        };
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "wire_check", "version": "1" },
        });
        connection.hello = connection.ask("initialize", &params.to_string()).await?;
        connection.tell("notifications/initialized").await?;
        Ok(connection)
    }
}

impl Connection {
    /// Sends a request whose params are this text, and returns the whole answer.
    pub(super) async fn ask(&mut self, method: &str, params: &str) -> anyhow::Result<Value> {
        let [answer] = self.ask_at_once([(method, params)]).await?;
        Ok(answer)
    }

    /// Sends requests without waiting between them.
    pub(super) async fn ask_at_once<const N: usize>(
        &mut self,
        requests: [(&str, &str); N],
    ) -> anyhow::Result<[Value; N]> {
        let first = self.requests + 1;
        self.requests += N as u64;
        let texts: Vec<_> = (first..)
            .zip(requests)
            .map(|(id, (method, params))| {
                (
                    id,
                    format!(
                        r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#
                    ),
                )
            })
            .collect();
        let mut answers = Vec::new();
        match &mut self.kind {
            Kind::Http(client, url, headers) => {
                let posts = texts.iter().map(|(id, text)| {
                    let request = client.post(&*url).headers(headers.clone());
                    let (id, text) = (*id, text.clone());
                    tokio::spawn(async move { post(request, id, text).await })
                });
                for post in posts.collect::<Vec<_>>() {
                    let (answer, session) = post.await??;
                    if let Some(session) = session {
                        headers.insert("mcp-session-id", session);
                    }
                    answers.push(answer);
                }
            }
            Kind::Stdio(pipes) => {
                for (_, text) in &texts {
                    pipes
                        .input
                        .write_all(format!("{text}\n").as_bytes())
                        .await?;
                }
                let mut found: Vec<(u64, Value)> = Vec::new();
                while found.len() < N {
                    let line = timeout(PATIENCE, pipes.output.next_line()).await;
                    let line = line
                        .context("no answer")??
                        .context("the server has ended")?;
                    let message: Value = serde_json::from_str(&line).context("no JSON")?;
                    if message.get("method").is_none()
                        && let Some(id) = message["id"].as_u64()
                    {
                        found.push((id, message));
                    }
                }
                found.sort_by_key(|(id, _)| *id);
                answers.extend(found.into_iter().map(|(_, message)| message));
            }
        }
        answers
            .try_into()
            .map_err(|_| anyhow::anyhow!("another number of answers"))
    }

    async fn tell(&mut self, method: &str) -> anyhow::Result<()> {
        let text = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
        match &mut self.kind {
            Kind::Stdio(pipes) => {
                pipes
                    .input
                    .write_all(format!("{text}\n").as_bytes())
                    .await?;
            }
            Kind::Http(client, url, headers) => {
                headers.insert(
                    "mcp-protocol-version",
                    HeaderValue::from_static("2025-11-25"),
                );
                let request = client.post(&*url).headers(headers.clone());
                accepting(request).body(text).send().await?;
            }
        }
        Ok(())
    }
}

fn accepting(request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
    request
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
}

async fn post(
    request: reqwest::RequestBuilder,
    id: u64,
    text: String,
) -> anyhow::Result<(Value, Option<HeaderValue>)> {
    let response = timeout(PATIENCE, accepting(request).body(text).send()).await??;
    let session = response.headers().get("mcp-session-id").cloned();
    let status = response.status();
    let body = timeout(PATIENCE, response.text()).await??;
    for line in body.lines() {
        let json = line.strip_prefix("data:").unwrap_or(line);
        if let Ok(message) = serde_json::from_str::<Value>(json)
            && (message["id"] == id || message.get("error").is_some())
        {
            return Ok((message, session));
        }
    }
    bail!("the server answered {status} without an answer: {body}")
}
