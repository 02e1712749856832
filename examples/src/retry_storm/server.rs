//! Servers as real processes, and rmcp's client connected to them.

use std::{
    fs::{self, File},
    future,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use anyhow::Context as _;
use rmcp::{
    Peer, RoleClient, ServiceExt as _, service::RunningService,
    transport::StreamableHttpClientTransport,
};
use tokio::process::{Child, Command};

use super::{SERVE_PAYMENTS, case::Side, database::Database, until};

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
        self.database.charges(&self.directory, &self.customer).await
    }

    /// Starts a server on this site's data, and connects to it.
    ///
    /// # Errors
    ///
    /// It does not start, or does not speak MCP.
    pub async fn start(&self, start: Start) -> anyhow::Result<Server> {
        let log = self.directory.join("server.log");
        self.try_start(start, &log).await.with_context(|| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("the server does not start; it said: {}", said.trim())
        })
    }

    async fn try_start(&self, start: Start, log: &Path) -> anyhow::Result<Server> {
        // Emptied, so that the address in it is that of this server.
        let stderr = File::create(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(SERVE_PAYMENTS)
            .args(self.database.arguments(&self.directory))
            .args(["--hold-ms", &start.hold_ms.to_string()])
            .args(["--answer-delay-ms", &start.answer_delay_ms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true);
        if !start.no_ledger {
            command.arg("--ledger").arg(self.ledger());
        }
        if start.http {
            command.args(["--http", "127.0.0.1:0"]);
        }
        let mut child = command.spawn().context("cannot run this program again")?;
        let client = if start.http {
            let asked = || future::ready(address(&mut child, log));
            let address = until("the server's address", asked).await?;
            let transport = StreamableHttpClientTransport::from_uri(address);
            ().serve(transport).await?
        } else {
            let stdio = child.stdout.take().zip(child.stdin.take());
            ().serve(stdio.context("the server has no pipes")?).await?
        };
        Ok(Server { child, client })
    }

    fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }
}

/// Where the server says that it listens.
fn address(child: &mut Child, log: &Path) -> anyhow::Result<Option<String>> {
    if let Some(status) = child.try_wait()? {
        anyhow::bail!("it ended with {status}");
    }
    let log = fs::read_to_string(log)?;
    let address = log
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
        .find_map(|line| line.strip_prefix("listening on "));
    Ok(address.map(str::to_owned))
}

/// A running server, and the client that is connected to it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    client: RunningService<RoleClient, ()>,
}

impl Server {
    /// The client's end.
    #[must_use]
    pub fn peer(&self) -> Peer<RoleClient> {
        self.client.peer().clone()
    }

    /// Says goodbye, and ends the process.
    ///
    /// # Errors
    ///
    /// It cannot be ended.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        // Over HTTP the goodbye is a request, so the process must still be there.
        self.client.close().await?;
        self.child.kill().await?;
        Ok(())
    }

    /// Kills the process where it stands (SIGKILL on Unix).
    ///
    /// # Errors
    ///
    /// It had ended already.
    pub async fn kill(mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            anyhow::bail!("the server had ended already, with {status}");
        }
        self.child.kill().await?;
        Ok(())
    }
}
