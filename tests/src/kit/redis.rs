//! Redis servers of one's own, alone or as a cluster, to be killed and started again as one likes.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command},
    thread,
    time::Duration,
};

use super::server::{Home, free_port};

/// How often a condition is looked at before a test gives up, and the rest between two looks.
const LOOKS: u32 = 3000;
const REST: Duration = Duration::from_millis(5);

/// A server that keeps an append-only file, flushed once a second. It ends with this value.
#[derive(Debug)]
pub struct Server {
    home: Home,
    port: u16,
    settings: Vec<String>,
    process: Option<Child>,
}

impl Server {
    /// # Panics
    ///
    /// There is no `redis-server`: the test fails, it is not left out.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these settings, for instance `["maxmemory-policy", "allkeys-lru"]`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[&str]) -> Self {
        for _ in 0..10 {
            let mut server = Self {
                home: Home::new("rd"),
                port: free_port(),
                settings: settings.iter().map(|it| (*it).to_owned()).collect(),
                process: None,
            };
            // Another process may have taken the port meanwhile, or the one 10 000 above it, on which
            // the nodes of a cluster talk to each other.
            if server.try_start() {
                return server;
            }
        }
        panic!("the server did not start on any of ten ports");
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// With SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn start_again(&mut self) {
        assert!(self.try_start(), "the server started before on this port");
    }

    /// Stops and continues the process; meanwhile its connections are open and silent.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    /// Runs one command, such as `CONFIG SET maxmemory 1mb`, and returns its answer as a text. No
    /// word of it may have a space in it.
    pub fn ask(&self, command: &str) -> String {
        try_ask(self.port, command).unwrap()
    }

    fn signal(&self, signal: &str) {
        let id = self.process.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    fn try_start(&mut self) -> bool {
        let mut command = self.home.command(program());
        command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--loglevel", "warning"])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--pidfile", "redis.pid", "--daemonize", "no"]);
        for setting in self.settings.chunks(2) {
            command.arg(format!("--{}", setting[0])).args(&setting[1..]);
        }
        let process = command
            .spawn()
            .unwrap_or_else(|error| panic!("{} did not start: {error}", program()));
        let process = self.process.insert(process);
        for _ in 0..LOOKS {
            if process.try_wait().unwrap().is_some() {
                return false;
            }
            // One that still reads its file answers with an error.
            if try_ask(self.port, "PING").is_ok_and(|answer| answer == "PONG") {
                return true;
            }
            thread::sleep(REST);
        }
        panic!("the server did not answer");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Primaries that share the slots, each with a number of replicas.
#[derive(Debug)]
pub struct Cluster {
    pub primaries: Vec<Server>,
    pub replicas: Vec<Server>,
}

impl Cluster {
    /// # Panics
    ///
    /// As [`Server::start`].
    pub fn start(primaries: usize, replicas_of_each: usize) -> Self {
        let settings = ["cluster-enabled", "yes", "cluster-node-timeout", "1500"];
        let start = |count| (0..count).map(|_| Server::start_with(&settings)).collect();
        let cluster = Self {
            primaries: start(primaries),
            replicas: start(primaries * replicas_of_each),
        };
        let first = &cluster.primaries[0];
        for node in cluster.nodes().skip(1) {
            first.ask(&format!("CLUSTER MEET 127.0.0.1 {}", node.port));
        }
        for (position, primary) in cluster.primaries.iter().enumerate() {
            let slots = (0..16_384).filter(|slot| slot * primaries / 16_384 == position);
            let slots: Vec<_> = slots.map(|slot: usize| slot.to_string()).collect();
            primary.ask(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        }
        for (position, replica) in cluster.replicas.iter().enumerate() {
            let primary = cluster.primaries[position % primaries].ask("CLUSTER MYID");
            let replicate = format!("CLUSTER REPLICATE {primary}");
            until(|| replica.ask(&replicate) == "OK");
            until(|| {
                replica
                    .ask("INFO replication")
                    .contains("master_link_status:up")
            });
        }
        let nodes = cluster.nodes().count();
        let known = format!("cluster_known_nodes:{nodes}\r");
        for node in cluster.nodes() {
            until(|| {
                let info = node.ask("CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains(&known)
            });
        }
        cluster
    }

    pub fn url(&self) -> String {
        self.primaries[0].url()
    }

    fn nodes(&self) -> impl Iterator<Item = &Server> {
        self.primaries.iter().chain(&self.replicas)
    }
}

/// # Panics
///
/// The condition did not come true in 15 seconds.
pub fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if condition() {
            return;
        }
        thread::sleep(REST);
    }
    panic!("the condition did not come true");
}

/// Over the inline form of the protocol, so that no driver is needed.
fn try_ask(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(length) = line.strip_prefix('$') else {
        return Ok(line.get(1..).unwrap_or_default().to_owned());
    };
    let mut text = vec![0; length.parse().unwrap_or(0)];
    stream.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn program() -> String {
    let program = std::env::var("MCP_IDEMPOTENT_TEST_REDIS_SERVER").unwrap_or_default();
    assert!(
        !program.is_empty(),
        "this starts a Redis server of its own: run it with `tests/run --with-services -- …`, which finds or installs one, or set MCP_IDEMPOTENT_TEST_REDIS_SERVER to the path of redis-server or valkey-server"
    );
    program
}
