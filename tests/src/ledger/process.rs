use std::{process::Stdio, sync::Arc, time::Duration};

use serde_json::json;
use tokio::process::{Child, Command};

use super::{Clock, Ledger, Pause, Secrets};
use crate::{
    client::{CallExt as _, Client, call},
    database::Database,
};

/// How a server is started.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Settings {
    pub connections: u32,
    /// How long a call waits for its turn.
    pub bound: Duration,
    pub pause: Option<Pause>,
    pub clock: Clock,
    pub secrets: Secrets,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: 4,
            bound: Duration::from_secs(10),
            pause: None,
            clock: Clock::Right,
            secrets: Secrets::None,
        }
    }
}

/// A running server and its client. It is killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub client: Arc<Client>,
}

impl Process {
    /// Starts `program`. To Postgres it is known as `name`.
    pub async fn start<D: Database>(
        program: &str,
        name: &str,
        database: &D,
        ledger: &Ledger,
        settings: Settings,
    ) -> Self {
        let arguments = [
            D::NAME.to_owned(),
            database.address(),
            ledger.path().to_str().unwrap().to_owned(),
            settings.connections.to_string(),
            settings.bound.as_millis().to_string(),
            settings.pause.map_or("nowhere", Pause::as_str).to_owned(),
            settings.secrets.as_str().to_owned(),
        ];
        Self::spawn(program, name, arguments, settings.clock).await
    }

    /// Starts `program` with these arguments. To Postgres it is known as `name`.
    pub async fn spawn(
        program: &str,
        name: &str,
        arguments: impl IntoIterator<Item = String>,
        clock: Clock,
    ) -> Self {
        let mut command = Command::new(program);
        clock.set_for(&mut command);
        let mut child = command
            .args(arguments)
            .env("PGAPPNAME", name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let stdin = child.stdin.take().unwrap();
        let client = Client::connect(stdout, stdin).await.unwrap();
        clock.assert_shown_by(&client).await;
        clock.clean_up(child.id().unwrap());
        Self {
            child,
            client: Arc::new(client),
        }
    }

    /// SIGKILL: the process has no chance to clean up.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGSTOP: the process freezes, as on a machine that is suspended.
    pub async fn pause(&self) {
        self.signal("STOP").await;
    }

    /// SIGCONT: it goes on where it stood.
    pub async fn resume(&self) {
        self.signal("CONT").await;
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        // The shell's own `kill` is there where the program is not.
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
            .status()
            .await
            .unwrap();
        assert!(status.success(), "SIG{name}: {status}");
    }
}

/// A charge under its own name as the key.
pub fn charge(name: &str, hold: bool) -> rmcp::model::CallToolRequestParams {
    call("charge", json!({ "name": name, "hold": hold })).with_key(name)
}
