//! A server whose tools pay at an API outside of every database, in a process of its own or in the
//! test's.

mod api;
mod server;

use std::{path::PathBuf, time::Duration};

use mcp_idempotent_tower::Policy;
use rmcp::model::CallToolRequestParams;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::{
    api::{KEY_HEADER, PaymentApi},
    server::{Server, serve},
};
use crate::{
    client::{CallExt as _, call},
    database::Database,
    ledger::{Clock, Ledger, Process},
};

/// The first argument of a process that serves these tools.
pub const SERVE: &str = "outside";

/// Where a handler stops until the ledger is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::exhaustive_enums, reason = "the two sides of the outside call")]
pub enum Place {
    BeforeCall,
    AfterCall,
}

/// How a server is started.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Settings {
    database: String,
    address: String,
    ledger: PathBuf,
    api: String,
    pub connections: u32,
    /// How long the API's answer is waited for.
    pub timeout: Duration,
    pub lease: Duration,
    pub stop_at: Option<Place>,
    /// Duplicates of a running call are told so at once.
    pub reject_running: bool,
    /// Of a process.
    #[serde(skip)]
    pub clock: Clock,
}

impl Settings {
    pub fn new<D: Database>(database: &D, ledger: &Ledger, api: &str) -> Self {
        Self {
            database: D::NAME.to_owned(),
            address: database.address(),
            ledger: ledger.path().to_owned(),
            api: api.to_owned(),
            connections: 4,
            timeout: Duration::from_secs(50),
            lease: Policy::DEFAULT_LEASE,
            stop_at: None,
            reject_running: false,
            clock: Clock::Right,
        }
    }

    /// Starts `program` so. To Postgres it is known as `name`.
    pub async fn start(&self, program: &str, name: &str) -> Process {
        let settings = serde_json::to_string(self).unwrap();
        let arguments = [SERVE.to_owned(), settings];
        Process::spawn(program, name, arguments, self.clock).await
    }
}

/// A payment by `tool`, under its own name as the key.
pub fn pay(tool: &str, name: &str) -> CallToolRequestParams {
    call(tool, json!({ "name": name })).with_key(name)
}
