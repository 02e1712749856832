//! A Postgres server of one's own, to be stopped, started and set up as one likes.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sqlx::postgres::PgConnectOptions;

use super::server::{Home, free_port};

/// The socket is in the data directory. It is a short name for the server, however long the path is.
const EVERY: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = '.'
jit = off
";

/// Small and without durability, for tests.
const SMALL: &str = "
max_connections = 60
shared_buffers = 16MB
fsync = off
autovacuum = off
";

/// It ends with this value.
#[derive(Debug)]
pub struct Cluster {
    home: Home,
    /// Where its log is, if it is not at home.
    log_home: Option<Home>,
    port: u16,
}

impl Cluster {
    /// Makes and starts a small one.
    ///
    /// # Panics
    ///
    /// There are no server binaries: the test fails, it is not left out.
    pub fn start() -> Self {
        Self::start_with(SMALL)
    }

    /// Makes and starts one with these lines of `postgresql.conf`.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    pub fn start_with(settings: &str) -> Self {
        Self::start_at(Home::new("pg"), None, settings)
    }

    /// As [`start_with`](Self::start_with), with its data in this directory. Its log is elsewhere: it goes
    /// on where the file system is full, or loses what it was given.
    pub fn start_in(directory: &Path, settings: &str) -> Self {
        let home = Home::new_in(directory, "pg");
        Self::start_at(home, Some(Home::new("pglog")), settings)
    }

    fn start_at(home: Home, log_home: Option<Home>, settings: &str) -> Self {
        let mut cluster = Self {
            home,
            log_home,
            port: 0,
        };
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
        let configuration = cluster.data().join("postgresql.conf");
        let mut text = std::fs::read_to_string(&configuration).unwrap();
        text += EVERY;
        text += settings;
        std::fs::write(&configuration, text).unwrap();
        cluster.start_somewhere();
        cluster
    }

    fn start_somewhere(&mut self) {
        for _ in 0..10 {
            self.port = free_port();
            if self.try_start() {
                return;
            }
        }
        panic!("the server did not start on any of ten ports");
    }

    /// A standby of this server, which streams from it. It is made of a copy, for which the server is
    /// stopped: not every build of Postgres has `pg_basebackup`.
    pub fn standby(&self) -> Self {
        let mut standby = Self {
            home: Home::new("pg"),
            log_home: None,
            port: 0,
        };
        self.run("pg_ctl", &["stop", "-w", "-m", "fast"]);
        let mut copy = standby.home.command("cp");
        let copied = copy.arg("-R").args([self.data(), standby.data()]).status();
        assert!(copied.unwrap().success(), "the data could not be copied");
        self.start_again();
        standby.home.write("data/standby.signal", "");
        let source = format!("host=127.0.0.1 port={} user=postgres", self.port);
        let settings = format!("primary_conninfo = '{source}'\n");
        standby.home.write("data/postgresql.auto.conf", &settings);
        standby.start_somewhere();
        standby
    }

    /// Writes a file into the data directory.
    pub fn write(&self, name: &str, text: &str) {
        self.home.write(&format!("data/{name}"), text);
    }

    /// Makes a primary of a standby.
    pub fn promote(&self) {
        self.run("pg_ctl", &["promote", "-w", "-t", "60"]);
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Over TCP.
    pub fn options(&self) -> PgConnectOptions {
        self.url().parse().unwrap()
    }

    pub fn over_the_socket(&self) -> PgConnectOptions {
        self.options().socket(self.data())
    }

    /// As if the machine had lost its power, except for what the kernel still writes.
    pub fn stop_immediately(&self) {
        self.run("pg_ctl", &["stop", "-w", "-m", "immediate"]);
    }

    /// What the server has written about itself.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap()
    }

    fn log_file(&self) -> PathBuf {
        let home = self.log_home.as_ref().unwrap_or(&self.home);
        home.path().join("log")
    }

    pub fn is_running(&self) -> bool {
        let mut status = self.command("pg_ctl", &["status"]);
        status.status().unwrap().success()
    }

    /// Starts it if it has ended. It may end again while the cause lasts.
    pub fn start_unless_running(&self) {
        if !self.is_running() {
            self.try_start();
        }
    }

    /// Stops all its processes. Says whether they are stopped.
    pub fn freeze(&self) -> bool {
        // The first one makes the others, so there are no new ones from here on.
        let first = [self.server_process()];
        signal("STOP", &first);
        let stands = |process: &u32| state_of(*process).is_none_or(|state| state == 'T');
        let first_stands = wait_until(|| first.iter().all(stands));
        let all = self.processes();
        signal("STOP", &all);
        first_stands && wait_until(|| all.iter().all(stands))
    }

    /// SIGKILL of all its processes. Says whether they are gone.
    pub fn kill(&self) -> bool {
        let all = self.processes();
        signal("KILL", &all);
        wait_until(|| {
            all.iter()
                .all(|it| state_of(*it).is_none_or(|it| it == 'Z'))
        })
    }

    /// As on a machine that comes back: the numbers of processes mean nothing any more.
    pub fn start_after_crash(&self) {
        let socket = format!(".s.PGSQL.{}.lock", self.port);
        for name in ["postmaster.pid", &socket] {
            // What was not flushed is not there.
            drop(std::fs::remove_file(self.data().join(name)));
        }
        self.start_again();
    }

    fn server_process(&self) -> u32 {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        file.lines().next().unwrap().trim().parse().unwrap()
    }

    /// The server process, and those that it has made.
    fn processes(&self) -> Vec<u32> {
        let first = self.server_process();
        let parent = format!("PPid:\t{first}\n");
        let processes = std::fs::read_dir("/proc").unwrap();
        let numbers = processes.filter_map(|it| it.ok()?.file_name().to_str()?.parse().ok());
        let made = numbers.filter(|process: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{process}/status"));
            status.is_ok_and(|status| status.contains(&parent))
        });
        std::iter::once(first).chain(made).collect()
    }

    pub fn start_again(&self) {
        let log = || {
            self.log()
                .lines()
                .rev()
                .take(8)
                .collect::<Vec<_>>()
                .join("\n")
        };
        assert!(
            self.try_start(),
            "the server does not start; its log backwards:\n{}",
            log()
        );
    }

    /// Stops it in order.
    pub fn stop(&self) {
        self.run("pg_ctl", &["stop", "-w", "-t", "120", "-m", "fast"]);
    }

    /// Starts it again under valgrind, which counts its instructions.
    pub fn start_counted(&self) {
        use std::os::unix::fs::PermissionsExt as _;
        drop(std::fs::remove_dir_all(self.counts()));
        let made = self.home.command("mkdir").arg(self.counts()).status();
        assert!(made.unwrap().success(), "a directory for the counts");
        let (server, counts) = (Self::program("postgres"), self.counts());
        let script = format!(
            "#!/bin/sh\nexec valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null \
             --log-file={}/%p {} \"$@\"\n",
            counts.display(),
            server.display()
        );
        self.home.write("counted", &script);
        let counted = self.home.path().join("counted");
        std::fs::set_permissions(&counted, std::fs::Permissions::from_mode(0o700)).unwrap();
        let program = ["-p".as_ref(), counted.as_os_str()];
        assert!(self.try_start_with(&program), "the server under valgrind");
    }

    /// Stops it, and returns the reports of its sessions. It has to log connections, and its log lines
    /// have to begin with the number of the process and a space.
    pub fn stop_counted(&self) -> Vec<String> {
        self.stop();
        let log = self.log();
        let sessions = log
            .lines()
            .filter(|line| line.contains("connection authorized"))
            .filter_map(|line| line.split(' ').next());
        sessions
            .filter_map(|process| std::fs::read_to_string(self.counts().join(process)).ok())
            .collect()
    }

    fn counts(&self) -> PathBuf {
        self.home.path().join("counts")
    }

    fn try_start(&self) -> bool {
        self.try_start_with(&[])
    }

    fn try_start_with(&self, arguments: &[&OsStr]) -> bool {
        let port = format!("-p {}", self.port);
        self.command("pg_ctl", &["start", "-w", "-t", "60", "-o", &port, "-l"])
            .arg(self.log_file())
            .args(arguments)
            .status()
            .unwrap()
            .success()
    }

    fn data(&self) -> PathBuf {
        self.home.path().join("data")
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = self.command(program, arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }

    fn program(name: &str) -> PathBuf {
        let binaries = std::env::var("MCP_IDEMPOTENT_TEST_PG_BIN").unwrap_or_default();
        assert!(
            !binaries.is_empty(),
            "this starts a Postgres server of its own: run it with `tests/run --with-services -- …`, which finds or installs one, or set MCP_IDEMPOTENT_TEST_PG_BIN to the directory of initdb and pg_ctl (and, as root, MCP_IDEMPOTENT_TEST_PG_USER to the user to run them as)"
        );
        Path::new(&binaries).join(name)
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = self.home.command(Self::program(program));
        command.arg("-D").arg(self.data()).args(arguments);
        command
    }
}

/// In the letters of Linux; `None`: there is no such process.
fn state_of(process: u32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let (_, state) = status.split_once("State:\t")?;
    state.chars().next()
}

fn signal(name: &str, processes: &[u32]) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}"));
    kill.args(processes.iter().map(u32::to_string));
    // One of them may have ended by itself.
    kill.stderr(Stdio::null()).status().unwrap();
}

fn wait_until(condition: impl Fn() -> bool) -> bool {
    for _ in 0..2000 {
        if condition() {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    false
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Fails where the test has stopped it already.
        let stop = ["stop", "-w", "-m", "immediate"];
        drop(self.command("pg_ctl", &stop).stderr(Stdio::null()).status());
    }
}
