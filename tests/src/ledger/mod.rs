//! A server in a process of its own, whose executions are counted outside any database.

mod clock;
mod process;
mod server;

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

pub use self::{
    clock::Clock,
    process::{Process, Settings, charge},
    server::{Pause, Secrets, serve},
};

/// A file that all processes append to, one line at a time: `run NAME` when a handler starts,
/// `paused NAME` where it was told to stop. It outlives kills, and knows nothing of transactions.
#[derive(Debug, Clone)]
pub struct Ledger {
    path: PathBuf,
}

impl Ledger {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn append(&self, what: &str, name: &str) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .unwrap();
        file.write_all(format!("{what} {name}\n").as_bytes())
            .unwrap();
    }

    fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.path)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    /// How often a handler was started for `name`.
    pub fn runs(&self, name: &str) -> usize {
        self.count(&format!("run {name}"))
    }

    /// How often any handler was started.
    pub fn started(&self) -> usize {
        self.lines()
            .iter()
            .filter(|line| line.starts_with("run "))
            .count()
    }

    /// How many handlers stopped where they were told to.
    pub fn paused(&self, name: &str) -> usize {
        self.count(&format!("paused {name}"))
    }

    /// What was written of this kind, in order.
    pub fn all(&self, what: &str) -> Vec<String> {
        let names = self.lines().into_iter().filter_map(|line| {
            let (kind, name) = line.split_once(' ')?;
            (kind == what).then(|| name.to_owned())
        });
        names.collect()
    }

    fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|other| *other == line).count()
    }

    /// Handlers that hold go on from now on.
    pub fn release(&self) {
        std::fs::write(self.released(), []).unwrap();
    }

    pub(crate) async fn until_released(&self) {
        while !self.released().exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn released(&self) -> PathBuf {
        self.path.with_extension("released")
    }
}
