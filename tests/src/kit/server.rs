//! A server program of one's own: whom it runs as, and where.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "support of tests, taken by path: each takes a part, and a panic is a failed test"
)]

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    net::TcpListener,
    os::unix::{fs::chown, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// A directory for one server. It belongs to the user whom the server runs as.
#[derive(Debug)]
pub struct Home(TempDir);

impl Home {
    pub fn new(prefix: &str) -> Self {
        Self::new_in(&std::env::temp_dir(), prefix)
    }

    /// On a file system of one's own.
    pub fn new_in(parent: &Path, prefix: &str) -> Self {
        let directory = TempDir::with_prefix_in(prefix, parent).unwrap();
        if let Some((user, group)) = user() {
            chown(directory.path(), Some(user), Some(group)).unwrap();
        }
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A file that only that user may read.
    pub fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let file = self.path().join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        if let Some((user, group)) = user() {
            chown(&file, Some(user), Some(group)).unwrap();
        }
    }

    /// A program that runs here, as that user.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .current_dir(self.path())
            .env("HOME", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some((user, group)) = user() {
            command.uid(user).gid(group);
        }
        command
    }
}

/// Below those that the kernel gives to connections on their way out, which come and go meanwhile.
pub fn free_port() -> u16 {
    let seed = RandomState::new().build_hasher().finish();
    (0..1000)
        .map(|step| 10_000 + u16::try_from((seed.wrapping_add(step)) % 9_000).unwrap())
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port")
}

/// Whom the server runs as, where the tests run as root.
fn user() -> Option<(u32, u32)> {
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
