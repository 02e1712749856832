//! The program `mcp-idempotent` over TLS: to its stores, and to a server that is reached over HTTP.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt as _, AsyncWriteExt as _, BufStream},
    net::{TcpListener, TcpStream},
    process::{self, Child},
    time::sleep,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

use crate::{
    authority,
    cluster::Cluster,
    redis,
    server::{Home, free_port},
    tls_on,
};

/// The program, as a user installs it.
fn program() -> PathBuf {
    let program = env::var_os("MCP_IDEMPOTENT_TEST_PROGRAM").filter(|it| !it.is_empty());
    let program = program.expect(
        "MCP_IDEMPOTENT_TEST_PROGRAM is not set: run `tests/run --installed`, or name the program, built with the feature `cli`",
    );
    program.into()
}

/// A certificate for this machine's address, and the one of who signed it.
struct Trust {
    home: Home,
    certificate: String,
    key: String,
}

impl Trust {
    fn new() -> Self {
        let (home, authority, key) = (Home::new("tls"), authority(), KeyPair::generate().unwrap());
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().pem();
        let key = key.serialize_pem();
        home.write("authority.crt", &authority.pem());
        home.write("server.crt", &certificate);
        home.write("server.key", &key);
        Self {
            home,
            certificate,
            key,
        }
    }

    fn file(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }
}

/// An MCP server over TLS. It counts the calls of its tool.
struct Upstream {
    port: u16,
    calls: Arc<AtomicU32>,
}

impl Upstream {
    async fn start(trust: &Trust) -> Self {
        let certificate = CertificateDer::from_pem_slice(trust.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(trust.key.as_bytes()).unwrap();
        let settings = ServerConfig::builder().with_no_client_auth();
        let settings = settings.with_single_cert(vec![certificate], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(settings));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, calls) = (acceptor.clone(), Arc::clone(&counted));
                tokio::spawn(async move {
                    // A client that does not trust the certificate leaves here.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let mut stream = BufStream::new(stream);
                        while let Some(request) = message(&mut stream).await {
                            let result = answer(&request, &calls);
                            let body =
                                json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                            let body = body.to_string();
                            let head = format!(
                                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                                body.len()
                            );
                            stream.write_all((head + &body).as_bytes()).await.unwrap();
                            stream.flush().await.unwrap();
                        }
                    }
                });
            }
        });
        Self { port, calls }
    }

    fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }
}

fn answer(request: &Value, calls: &AtomicU32) -> Value {
    if request["method"] != "tools/call" {
        return json!({ "tools": [{ "name": "charge_card", "inputSchema": { "type": "object" } }] });
    }
    let number = calls.fetch_add(1, Ordering::SeqCst) + 1;
    json!({ "content": [{ "type": "text", "text": format!("charge {number}") }] })
}

/// The JSON of the next HTTP message, or `None` at the end.
async fn message(stream: &mut (impl AsyncBufReadExt + Unpin)) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(serde_json::from_slice(&body).unwrap())
}

/// The program in front of a server. It ends with this value.
struct Proxy {
    process: Child,
    port: u16,
}

impl Proxy {
    async fn start(trusted: &Path, store: &str, upstream: u16) -> Self {
        let port = free_port();
        let process = process::Command::new(program())
            .env("SSL_CERT_FILE", trusted)
            .args(["--store", store, "--scope", "tests"])
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(["--upstream", &format!("https://127.0.0.1:{upstream}")])
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut proxy = Self {
            process: process,
            port,
        };
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            let ended = proxy.process.try_wait().unwrap();
            assert!(ended.is_none(), "{store}: the proxy ended");
            sleep(Duration::from_millis(5)).await;
        }
        proxy
    }

    /// What is answered to `charge_card`, under a key.
    async fn charge(&self, key: &str) -> Value {
        let call = json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {
                "name": "charge_card",
                "arguments": { "cents": 500 },
                "_meta": { "idempotency-key": key },
            },
        });
        let body = call.to_string();
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let mut stream = BufStream::new(stream);
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        message(&mut stream).await.unwrap()
    }
}

/// The program's output on a store.
fn run(trusted: &Path, arguments: &[&str]) -> Output {
    Command::new(program())
        .env("SSL_CERT_FILE", trusted)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

async fn five_calls_charge_once(trust: &Trust, store: &str) {
    let trusted = trust.file("authority.crt");
    let upstream = Upstream::start(trust).await;
    let proxy = Proxy::start(trusted.as_ref(), store, upstream.port).await;
    for _ in 0..5 {
        let answer = proxy.charge("key").await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, "charge 1", "{store}: {answer}");
    }
    assert_eq!(upstream.calls(), 1, "{store}");
}

/// The same with a certificate that nobody whom the program trusts has signed.
fn a_stranger_is_refused(store: &str) {
    let other = Trust::new();
    let trusted = other.file("authority.crt");
    let output = run(trusted.as_ref(), &["doctor", "--store", store]);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!output.status.success(), "{store}: {said}");
    assert!(
        said.contains("certificate") || said.contains("UnknownIssuer"),
        "{store}: {said}"
    );
}

#[tokio::test]
async fn five_calls_to_a_server_over_tls_charge_once() {
    five_calls_charge_once(&Trust::new(), "memory").await;
}

#[tokio::test]
async fn a_call_to_a_server_that_cannot_be_checked_is_not_sent() {
    let (trust, other) = (Trust::new(), Trust::new());
    let upstream = Upstream::start(&trust).await;
    let trusted = other.file("authority.crt");
    let proxy = Proxy::start(trusted.as_ref(), "memory", upstream.port).await;
    let answer = proxy.charge("key").await;
    assert_eq!(
        answer["error"]["data"]["outcome"], "not_committed",
        "{answer}"
    );
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test]
async fn records_are_kept_in_a_postgres_whose_certificate_is_checked() {
    let trust = Trust::new();
    let cluster = Cluster::start();
    // From the reload on, a connection without TLS is turned away.
    cluster.write("pg_hba.conf", "hostssl all all 127.0.0.1/32 trust\n");
    tls_on(&cluster, &trust.certificate, &trust.key).await;
    let store = format!("{}?sslmode=verify-full", cluster.url());
    five_calls_charge_once(&trust, &store).await;
    let trusted = trust.file("authority.crt");
    let output = run(trusted.as_ref(), &["doctor", "--store", &store]);
    assert!(output.status.success(), "{output:?}");
    a_stranger_is_refused(&store);
}

#[tokio::test]
async fn records_are_kept_in_a_redis_whose_certificate_is_checked() {
    let trust = Trust::new();
    let port = free_port().to_string();
    let _server = redis::Server::start_with(&[
        "tls-port",
        &port,
        "tls-cert-file",
        &trust.file("server.crt"),
        "tls-key-file",
        &trust.file("server.key"),
        "tls-ca-cert-file",
        &trust.file("authority.crt"),
        "tls-auth-clients",
        "no",
    ]);
    let store = format!("rediss://127.0.0.1:{port}");
    five_calls_charge_once(&trust, &store).await;
    let trusted = trust.file("authority.crt");
    let output = run(trusted.as_ref(), &["doctor", "--store", &store]);
    assert!(output.status.success(), "{output:?}");
    a_stranger_is_refused(&store);
}
