use std::{
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A Postgres server of a test's own, to be stopped and started as the test likes.
#[derive(Debug)]
pub struct Cluster {
    home: TempDir,
    port: u16,
}

impl Cluster {
    /// Makes and starts one.
    ///
    /// # Panics
    ///
    /// There are no server binaries: the test fails, it is not left out.
    pub fn start() -> Self {
        let home = TempDir::with_prefix("pg").unwrap();
        if let Some((user, group)) = server_user() {
            std::os::unix::fs::chown(home.path(), Some(user), Some(group)).unwrap();
        }
        // Taken and given back: the server binds it a moment later.
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let cluster = Self { home, port };
        cluster.run(
            "initdb",
            &[
                "--username=postgres",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ],
        );
        let settings = format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n\
             max_connections = 60\nshared_buffers = 16MB\nfsync = off\njit = off\n"
        );
        let configuration = cluster.data().join("postgresql.conf");
        let mut text = std::fs::read_to_string(&configuration).unwrap();
        text.push_str(&settings);
        std::fs::write(&configuration, text).unwrap();
        cluster.start_again();
        cluster
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// As if the machine had lost its power, except for what the kernel still writes.
    pub fn stop_immediately(&self) {
        self.run("pg_ctl", &["stop", "-w", "-m", "immediate"]);
    }

    pub fn start_again(&self) {
        let log = self.home.path().join("log");
        self.run(
            "pg_ctl",
            &["start", "-w", "-t", "60", "-l", log.to_str().unwrap()],
        );
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program, arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let binaries = std::env::var("MCP_IDEMPOTENT_TEST_PG_BIN").unwrap_or_default();
        assert!(
            !binaries.is_empty(),
            "this test starts a Postgres server of its own: run it with tests/run, or set MCP_IDEMPOTENT_TEST_PG_BIN to the directory of initdb and pg_ctl"
        );
        let mut command = Command::new(Path::new(&binaries).join(program));
        command
            .arg("-D")
            .arg(self.data())
            .args(arguments)
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some((user, group)) = server_user() {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Fails where the test has stopped it already.
        let stop = ["stop", "-w", "-m", "immediate"];
        drop(self.command("pg_ctl", &stop).stderr(Stdio::null()).status());
    }
}

/// Whom the server runs as, where the tests run as root.
fn server_user() -> Option<(u32, u32)> {
    let name = std::env::var("MCP_IDEMPOTENT_TEST_PG_USER").ok()?;
    if name.is_empty() {
        return None;
    }
    let id = |what: &str| {
        let output = Command::new("id").arg(what).arg(&name).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    Some((id("-u"), id("-g")))
}
