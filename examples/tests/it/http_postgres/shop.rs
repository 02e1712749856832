//! Processes of `http_postgres` on a schema of their own.

use std::{panic, process::Stdio};

use mcp_idempotent_examples::payments::postgres;
use rmcp::{
    ServiceExt as _,
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStderr},
    time::timeout,
};

use super::super::{Client, PATIENCE, database_url, example};

pub(crate) const ALICE: &str = "alice-s3cret";
pub(crate) const BOB: &str = "bob-s3cret";

/// A schema in the database, for any number of processes.
#[derive(Clone)]
pub(crate) struct Shop {
    url: String,
    schema: String,
    pub(crate) pool: PgPool,
}

impl Shop {
    /// Runs a test in a schema of its own, which is removed afterwards, also after a failure.
    pub(crate) async fn open<F>(name: &str, test: impl FnOnce(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let url = database_url();
        let schema = format!("http_postgres_{name}_{}", std::process::id());
        let pool = postgres::connect(&url, &schema).await.unwrap();
        let shop = Self { url, schema, pool };
        let ended = tokio::spawn(test(shop.clone())).await;
        let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", shop.schema);
        let removed = sqlx::query(AssertSqlSafe(drop)).execute(&shop.pool).await;
        if let Err(failed) = ended {
            panic::resume_unwind(failed.into_panic());
        }
        removed.unwrap();
    }

    pub(crate) async fn start(&self, arguments: &[&str]) -> Process {
        let mut child = example("http_postgres")
            .args(["--store", &self.url, "--schema", &self.schema])
            .args(["--http", "127.0.0.1:0"])
            .args(["--user", &format!("alice={ALICE}")])
            .args(["--user", &format!("bob={BOB}")])
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = next(&mut said).await;
        let uri = line.strip_prefix("listening on ").expect(&line).to_owned();
        Process { child, said, uri }
    }

    pub(crate) async fn orders(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) said: Lines<BufReader<ChildStderr>>,
    pub(crate) uri: String,
}

pub(crate) async fn next(said: &mut Lines<BufReader<ChildStderr>>) -> String {
    let line = timeout(PATIENCE, said.next_line()).await.unwrap().unwrap();
    line.expect("the server has something to say")
}

impl Process {
    pub(crate) async fn client(&self, token: &str) -> Client {
        let config =
            StreamableHttpClientTransportConfig::with_uri(self.uri.as_str()).auth_header(token);
        let transport = StreamableHttpClientTransport::from_config(config);
        timeout(PATIENCE, ().serve(transport))
            .await
            .unwrap()
            .unwrap()
    }

    /// One request, and the answer as it is.
    pub(crate) async fn http(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let host = self.uri.strip_prefix("http://").unwrap();
        let host = host.strip_suffix("/mcp").unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\
             Content-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        );
        let mut answer = String::new();
        let exchange = async {
            let mut stream = TcpStream::connect(host).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
        };
        timeout(PATIENCE, exchange).await.unwrap();
        answer
    }

    /// A message of the protocol, as it is.
    pub(crate) async fn post(&self, headers: &str, message: &Value) -> String {
        let headers = format!(
            "Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}"
        );
        self.http("POST", "/mcp", &headers, &message.to_string())
            .await
    }

    /// How many calls of a tool ended so, by the metrics endpoint.
    pub(crate) async fn calls(&self, tool: &str, outcome: &str) -> u32 {
        let metrics = self.http("GET", "/metrics", "", "").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("# TYPE mcp_idempotent_calls_total counter"));
        let labels = [
            "application=\"shop\"",
            &format!("tool=\"{tool}\""),
            &format!("outcome=\"{outcome}\""),
        ];
        metrics
            .lines()
            .filter(|line| line.starts_with("mcp_idempotent_calls_total{"))
            .find(|line| labels.iter().all(|label| line.contains(label)))
            .map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}
