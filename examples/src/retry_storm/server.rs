//! Where a case's servers keep what they have, and how they are started.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;

use super::case::Side;
use crate::{database::Database, process::Server};

/// How a server is started.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Start {
    /// Over HTTP instead of stdio.
    pub http: bool,
    /// How long each charge is held after its write.
    pub hold_ms: u64,
    /// How long each answer is held back after the commit.
    pub answer_delay_ms: u64,
    /// Without counting executions: nothing but the tool's own work.
    pub no_ledger: bool,
}

/// What a case has for itself: a directory, a customer, a place for charges.
#[derive(Debug)]
pub struct Site {
    directory: PathBuf,
    customer: String,
    database: Arc<Database>,
}

impl Site {
    /// Makes the directory.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn new(
        parent: &Path,
        letter: char,
        side: Side,
        database: &Arc<Database>,
    ) -> anyhow::Result<Self> {
        let customer = format!("{letter}-{side:?}").to_lowercase();
        let directory = parent.join(&customer);
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        Ok(Self {
            directory,
            customer,
            database: Arc::clone(database),
        })
    }

    /// Whose card is charged.
    #[must_use]
    pub fn customer(&self) -> &str {
        &self.customer
    }

    /// How often a tool ran to its write, by the ledger.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn executions(&self) -> anyhow::Result<usize> {
        let ledger = fs::read_to_string(self.ledger()).context("cannot read the ledger")?;
        Ok(ledger.lines().count())
    }

    /// How many charges are committed, by the database.
    ///
    /// # Errors
    ///
    /// The database cannot be read.
    pub async fn charges(&self) -> anyhow::Result<usize> {
        let query = "SELECT count(*) FROM charges WHERE customer = $1";
        self.database
            .count(&self.directory, query, &self.customer)
            .await
    }

    /// Starts a server on this site's data, and connects to it.
    ///
    /// # Errors
    ///
    /// It does not start, or does not speak MCP.
    pub async fn start(&self, start: Start) -> anyhow::Result<Server> {
        let log = self.directory.join("server.log");
        Server::start(&log, start.http, |command| {
            command
                .args(self.database.arguments(&self.directory))
                .args(["--hold-ms", &start.hold_ms.to_string()])
                .args(["--answer-delay-ms", &start.answer_delay_ms.to_string()]);
            if !start.no_ledger {
                command.arg("--ledger").arg(self.ledger());
            }
        })
        .await
    }

    fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }
}
