//! pgbouncer in front of a Postgres server.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::exhaustive_enums,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

use std::{
    net::TcpStream,
    os::unix::process::ExitStatusExt as _,
    process::{Child, Stdio},
    thread::sleep,
    time::Duration,
};

use sqlx::{ConnectOptions as _, postgres::PgConnectOptions};

use super::server::{Home, free_port};

/// For how long a client keeps the server session that it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    Session,
    Transaction,
}

/// It ends with this value.
#[derive(Debug)]
pub struct Pooler {
    child: Child,
    program: String,
    port: u16,
    home: Home,
}

impl Pooler {
    /// Starts one that opens at most `sessions` to `server`, for each database.
    ///
    /// # Panics
    ///
    /// There is no pgbouncer: the test fails, it is not left out.
    pub fn start(server: &PgConnectOptions, mode: PoolMode, sessions: u32) -> Self {
        Self::start_with(server, mode, sessions, "")
    }

    /// As [`start`](Self::start); its sessions find unqualified names in this schema. The pooler cannot pass
    /// on that a client asks for it.
    pub fn start_in_schema(
        server: &PgConnectOptions,
        mode: PoolMode,
        sessions: u32,
        schema: &str,
    ) -> Self {
        let query = format!(" connect_query='SET search_path TO {schema}'");
        Self::start_with(server, mode, sessions, &query)
    }

    fn start_with(server: &PgConnectOptions, mode: PoolMode, sessions: u32, more: &str) -> Self {
        let program = std::env::var("MCP_IDEMPOTENT_TEST_PGBOUNCER").unwrap_or_default();
        assert!(
            !program.is_empty(),
            "this starts pgbouncer: run it with `tests/run --with-services -- …`, which finds or installs it, or set MCP_IDEMPOTENT_TEST_PGBOUNCER to the program"
        );
        let home = Home::new("pgbouncer");
        let port = free_port();
        let settings = settings(server, mode, sessions, port, more);
        home.write("pgbouncer.ini", &settings);
        let pooler = Self {
            child: spawn(&home, &program),
            program,
            port,
            home,
        };
        pooler.wait();
        pooler
    }

    /// SIGKILL. Says whether that is what it died of.
    pub fn kill(&mut self) -> bool {
        const SIGKILL: i32 = 9;
        drop(self.child.kill());
        self.child.wait().unwrap().signal() == Some(SIGKILL)
    }

    /// On the same port.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.home, &self.program);
        self.wait();
    }

    fn wait(&self) {
        for _ in 0..1000 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
        panic!("pgbouncer did not start");
    }

    /// How to connect through it.
    pub fn options(&self, server: PgConnectOptions) -> PgConnectOptions {
        server.host("127.0.0.1").port(self.port)
    }
}

fn spawn(home: &Home, program: &str) -> Child {
    let mut command = home.command(program);
    command.arg("pgbouncer.ini").stderr(Stdio::null());
    command.spawn().unwrap()
}

fn settings(
    server: &PgConnectOptions,
    mode: PoolMode,
    sessions: u32,
    port: u16,
    more: &str,
) -> String {
    let (host, server_port, user) = (server.get_host(), server.get_port(), server.get_username());
    let password = match server.to_url_lossy().password() {
        Some(password) => format!(" password={password}"),
        None => String::new(),
    };
    let mode = match mode {
        PoolMode::Session => "session",
        PoolMode::Transaction => "transaction",
    };
    format!(
        "[databases]
* = host={host} port={server_port} user={user}{password}{more}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
ignore_startup_parameters = extra_float_digits, options
"
    )
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
