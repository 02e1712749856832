//! `payments` servers as real processes, and rmcp's client connected to them.

use std::{
    fs::{self, File},
    future,
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::Context as _;
use rmcp::{
    Peer, RoleClient, ServiceExt as _, service::RunningService,
    transport::StreamableHttpClientTransport,
};
use tokio::{
    process::{Child, Command},
    time::Instant,
};

/// The first argument that makes an example a `payments` server.
pub const SERVE_PAYMENTS: &str = "serve-payments";

/// How long anything may take before it counts as failed.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks until there is an answer.
///
/// # Errors
///
/// Asking fails, or there is none in time.
pub async fn until<T, F>(what: &str, mut ask: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<Option<T>>>,
{
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        anyhow::ensure!(
            start.elapsed() < PATIENCE,
            "{what} did not come within {PATIENCE:?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A running server, and the client that is connected to it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    client: RunningService<RoleClient, ()>,
}

impl Server {
    /// Starts this program again as `payments`, with arguments that `arguments` adds, and connects
    /// to it over stdio or over HTTP.
    ///
    /// # Errors
    ///
    /// It does not start, or does not speak MCP.
    pub async fn start(
        log: &Path,
        http: bool,
        arguments: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        Self::try_start(log, http, arguments)
            .await
            .with_context(|| {
                let said = fs::read_to_string(log).unwrap_or_default();
                format!("the server does not start; it said: {}", said.trim())
            })
    }

    async fn try_start(
        log: &Path,
        http: bool,
        arguments: impl FnOnce(&mut Command),
    ) -> anyhow::Result<Self> {
        // Emptied, so that the address in it is that of this server.
        let stderr = File::create(log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(SERVE_PAYMENTS)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true);
        arguments(&mut command);
        if http {
            command.args(["--http", "127.0.0.1:0"]);
        }
        let mut child = command.spawn().context("cannot run this program again")?;
        let client = if http {
            let asked = || future::ready(address(&mut child, log));
            let address = until("the server's address", asked).await?;
            let transport = StreamableHttpClientTransport::from_uri(address);
            ().serve(transport).await?
        } else {
            let stdio = child.stdout.take().zip(child.stdin.take());
            ().serve(stdio.context("the server has no pipes")?).await?
        };
        Ok(Self { child, client })
    }

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

    /// Stops the process where it stands (SIGSTOP), as a machine that is suspended does.
    ///
    /// # Errors
    ///
    /// It has ended, or this is not Unix.
    pub async fn pause(&self) -> anyhow::Result<()> {
        self.signal("STOP").await
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    ///
    /// It has ended, or this is not Unix.
    pub async fn resume(&self) -> anyhow::Result<()> {
        self.signal("CONT").await
    }

    async fn signal(&self, name: &str) -> anyhow::Result<()> {
        let pid = self.child.id().context("the server has ended")?;
        // The shell's own `kill` is there where the program is not.
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid.to_string()])
            .status()
            .await
            .context("cannot run sh")?;
        anyhow::ensure!(status.success(), "SIG{name} could not be sent: {status}");
        Ok(())
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
