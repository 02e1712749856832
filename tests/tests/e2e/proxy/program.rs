//! The program, and a client that speaks to it line by line.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};

/// How long something that must happen may take.
const BOUND: Duration = Duration::from_secs(60);

/// The server of the tests.
pub(crate) const PLAIN: &str = env!("CARGO_BIN_EXE_plain-server");

/// `mcp-idempotent`: the one that is named, or else the one that is built beside the server.
pub(crate) fn proxy() -> PathBuf {
    if let Some(program) = env::var_os("MCP_IDEMPOTENT_TEST_PROGRAM").filter(|it| !it.is_empty()) {
        return program.into();
    }
    let program =
        Path::new(PLAIN).with_file_name(format!("mcp-idempotent{}", env::consts::EXE_SUFFIX));
    assert!(
        program.exists(),
        "{} is missing: run the tests of the whole workspace, or `cargo build -p mcp-idempotent-tower --features cli-without-tls`",
        program.display()
    );
    program
}

/// A directory for the effects of a server, and for what holds it.
pub(super) struct Place(TempDir);

impl Place {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub(super) fn ledger(&self) -> String {
        self.path("ledger")
    }

    /// What was charged.
    pub(super) fn charges(&self) -> Vec<String> {
        let ledger = fs::read_to_string(self.ledger()).unwrap_or_default();
        ledger.lines().map(str::to_owned).collect()
    }

    pub(super) async fn until_charged(&self, times: usize) {
        let charged = async {
            while self.charges().len() < times {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(BOUND, charged).await.expect("nothing was charged");
    }

    /// Lets a held server go on.
    pub(super) fn release(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// The proxy in front of the plain server.
    pub(super) fn start(&self, options: &[&str]) -> Program {
        let server = ["--", PLAIN, &self.ledger()].map(str::to_owned);
        let options = options.iter().map(|option| (*option).to_owned());
        Program::start(proxy(), options.chain(server))
    }
}

/// A running program. It is killed when dropped.
pub(super) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    pub(super) fn start(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.input.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    pub(super) async fn say(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes()).await;
    }

    /// The next message, or `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        timeout(BOUND, read).await.expect("nothing came").unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    pub(super) async fn hear(&mut self) -> Value {
        self.next().await.expect("the end")
    }

    /// A call, and its answer.
    pub(super) async fn call(&mut self, call: &Value) -> Value {
        self.say(call).await;
        self.hear().await
    }

    pub(super) const fn output(&mut self) -> &mut BufReader<ChildStdout> {
        &mut self.output
    }

    pub(super) fn close(&mut self) {
        self.input = None;
    }

    pub(super) fn pid(&self) -> String {
        self.child.id().unwrap().to_string()
    }

    pub(super) async fn signal(&self, name: &str) {
        signal(name, &self.pid()).await;
    }

    /// The process that this one started.
    pub(super) async fn server_pid(&self) -> String {
        let pid = self.pid();
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_dir(format!("/proc/{pid}/task"))
            .unwrap()
            .map(|task| {
                let path = task.unwrap().path().join("children");
                fs::read_to_string(path).unwrap_or_default()
            });
        let children: String = children.collect();
        children
            .split_whitespace()
            .next()
            .unwrap_or_else(|| panic!("no child in {path}"))
            .to_owned()
    }

    pub(super) async fn end(&mut self) -> ExitStatus {
        timeout(BOUND, self.child.wait())
            .await
            .expect("it goes on")
            .unwrap()
    }

    /// All that it said on standard error, until it ended.
    pub(super) async fn complaints(&mut self) -> String {
        let mut text = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        let read = errors.read_to_string(&mut text);
        timeout(BOUND, read).await.expect("it goes on").unwrap();
        text
    }
}

pub(super) async fn signal(name: &str, pid: &str) {
    let status = Command::new("sh")
        .args(["-c", "kill -s \"$0\" \"$1\"", name, pid])
        .status()
        .await
        .unwrap();
    assert!(status.success(), "SIG{name}: {status}");
}

pub(super) fn charge(id: u32, arguments: Value) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "method": "tools/call",
        "params": { "name": "charge_card", "arguments": arguments },
    })
}

pub(super) fn text_of(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_default()
}

pub(super) fn outcome_of(answer: &Value) -> &str {
    let refusal = &answer["result"]["_meta"]["io.github.mcp-idempotent/refusal"];
    refusal["outcome"].as_str().unwrap_or_default()
}
