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
    port: u16,
    _home: Home,
}

impl Pooler {
    /// Starts one that opens at most `sessions` to `server`, for each database.
    ///
    /// # Panics
    ///
    /// There is no pgbouncer: the test fails, it is not left out.
    pub fn start(server: &PgConnectOptions, mode: PoolMode, sessions: u32) -> Self {
        let program = std::env::var("MCP_IDEMPOTENT_TEST_PGBOUNCER").unwrap_or_default();
        assert!(
            !program.is_empty(),
            "this starts pgbouncer: run it with `tests/run --with-services -- …`, which finds or installs it, or set MCP_IDEMPOTENT_TEST_PGBOUNCER to the program"
        );
        let home = Home::new("pgbouncer");
        let port = free_port();
        home.write("pgbouncer.ini", &settings(server, mode, sessions, port));
        let child = home
            .command(program)
            .arg("pgbouncer.ini")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pooler = Self {
            child,
            port,
            _home: home,
        };
        for _ in 0..1000 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return pooler;
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

fn settings(server: &PgConnectOptions, mode: PoolMode, sessions: u32, port: u16) -> String {
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
* = host={host} port={server_port} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {sessions}
ignore_startup_parameters = extra_float_digits
"
    )
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
