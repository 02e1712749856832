//! A server of our own: what is measured depends on its settings, which nobody else's should be.

use std::{
    env, fs,
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgConnectOptions};

const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
max_connections = 100
shared_buffers = 256MB
max_wal_size = 4GB
checkpoint_timeout = 30min
jit = off
# With it, a delay of commits applies to a single one as well.
commit_siblings = 0
";

/// The user to run the server as: it refuses to run as root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

/// A cluster that ends with this value.
pub(crate) struct Cluster {
    directory: tempfile::TempDir,
    binaries: PathBuf,
    user: Option<User>,
    port: u16,
    server: Child,
}

impl Cluster {
    /// Makes and starts one, with the binaries that `tests/run --with-services` names.
    pub(crate) async fn start() -> Self {
        let binaries = env::var_os("MCP_IDEMPOTENT_TEST_PG_BIN").filter(|path| !path.is_empty());
        let Some(binaries) = binaries.map(PathBuf::from) else {
            panic!(
                "no Postgres: this benchmark starts a server of its own. Run it as \
                 `tests/run --with-services -- cargo bench …`, which finds or installs one, or set \
                 MCP_IDEMPOTENT_TEST_PG_BIN to the directory of initdb, postgres and pg_ctl (and, as root, \
                 MCP_IDEMPOTENT_TEST_PG_USER to the user to run them as)."
            )
        };
        let user = env::var("MCP_IDEMPOTENT_TEST_PG_USER")
            .ok()
            .filter(|user| !user.is_empty())
            .map(|user| User {
                uid: id("-u", &user),
                gid: id("-g", &user),
            });
        let directory = tempfile::tempdir().expect("a temporary directory");
        // The server's user passes through it.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))
            .expect("the directory is ours");
        let home = directory.path().join("pg");
        fs::create_dir(&home).expect("the directory is ours");
        if let Some(User { uid, gid }) = user {
            chown(&home, Some(uid), Some(gid)).expect("who runs it as another user may do this");
        }
        let status = command(&binaries, "initdb", user, &home)
            .args(["--username=postgres", "--auth=trust", "--encoding=UTF8"])
            .args(["--locale=C", "--no-sync", "--pgdata"])
            .arg(home.join("data"))
            .stdout(Stdio::null())
            .status()
            .expect("initdb can be started");
        assert!(status.success(), "initdb: {status}");
        let port = free_port();
        let sockets = home.display();
        let settings = format!("{SETTINGS}unix_socket_directories = '{sockets}'\nport = {port}\n");
        fs::write(home.join("data/postgresql.auto.conf"), settings).expect("a file of ours");
        let log = fs::File::create(directory.path().join("log")).expect("a file of ours");
        let server = command(&binaries, "postgres", user, &home)
            .arg("-D")
            .arg(home.join("data"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres can be started");
        let cluster = Self {
            directory,
            binaries,
            user,
            port,
            server,
        };
        for _ in 0..300 {
            if PgConnection::connect_with(&cluster.over_the_socket())
                .await
                .is_ok()
            {
                return cluster;
            }
            sleep(Duration::from_millis(100));
        }
        let log = fs::read_to_string(cluster.directory.path().join("log")).unwrap_or_default();
        panic!("the server did not start: {log}");
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("pg")
    }

    pub(crate) fn over_the_socket(&self) -> PgConnectOptions {
        self.over_tcp(self.port).socket(self.home())
    }

    /// Through whatever listens at `port` on this machine.
    pub(crate) fn over_tcp(&self, port: u16) -> PgConnectOptions {
        PgConnectOptions::new()
            .host("127.0.0.1")
            .port(port)
            .username("postgres")
            .database("postgres")
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Changes settings that need no restart.
    pub(crate) async fn set(&self, settings: &[(&str, &str)]) {
        let mut connection = PgConnection::connect_with(&self.over_the_socket())
            .await
            .expect("the server answers");
        for (name, value) in settings {
            let sql = format!("ALTER SYSTEM SET {name} = '{value}'");
            sqlx::query(AssertSqlSafe(sql))
                .execute(&mut connection)
                .await
                .expect("we are its superuser");
        }
        sqlx::query("SELECT pg_reload_conf()")
            .execute(&mut connection)
            .await
            .expect("we are its superuser");
        for (name, value) in settings {
            for tries in 0.. {
                let shown: String =
                    sqlx::query_scalar("SELECT setting FROM pg_settings WHERE name = $1")
                        .bind(name)
                        .fetch_one(&mut connection)
                        .await
                        .expect("the server answers");
                if shown == *value {
                    break;
                }
                assert!(tries < 300, "the server does not take {name} = {value}");
                sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let stopped = command(&self.binaries, "pg_ctl", self.user, &self.home())
            .args(["stop", "--silent", "--mode=immediate", "--pgdata"])
            .arg(self.home().join("data"))
            .status();
        if !stopped.is_ok_and(|status| status.success()) {
            drop(self.server.kill());
        }
        drop(self.server.wait());
    }
}

fn command(binaries: &Path, program: &str, user: Option<User>, home: &Path) -> Command {
    let mut command = Command::new(binaries.join(program));
    command.current_dir(home).stdin(Stdio::null());
    if let Some(User { uid, gid }) = user {
        command.uid(uid).gid(gid).env("HOME", home);
    }
    command
}

fn id(which: &str, user: &str) -> u32 {
    let output = Command::new("id").args([which, user]).output();
    output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|id| id.trim().parse().ok())
        .unwrap_or_else(|| panic!("MCP_IDEMPOTENT_TEST_PG_USER: there is no user {user:?}"))
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .port()
}
