//! Effects outside of every database: a real HTTP server counts them, and everything else may fail.

mod api;
mod clocks;
mod duplicates;
mod errors;
mod hiccups;
mod kills;
mod pauses;

use std::time::Duration;

use mcp_idempotent_tests::{
    client::Answer,
    database::Database,
    ledger::{Ledger, Process},
    outside::{Server, Settings},
};
use mcp_idempotent_tower::{Idempotency, Policy, RecordInfo, RecordQuery, RecordStatus};
use tempfile::TempDir;

use self::api::Api;

const SECOND: Duration = Duration::from_secs(1);

/// A database, a payment API, a ledger of executions, and servers that are started on them.
struct Site<D: Database> {
    database: D,
    api: Api,
    ledger: Ledger,
    _directory: TempDir,
}

impl<D: Database> Site<D> {
    /// With an API that recognises keys.
    async fn new() -> Self {
        Self::with_api(Api::start(true).await).await
    }

    async fn with_api(api: Api) -> Self {
        let directory = TempDir::new().unwrap();
        Self {
            database: D::create().await,
            api,
            ledger: Ledger::new(directory.path().join("ledger")),
            _directory: directory,
        }
    }

    fn settings(&self) -> Settings {
        Settings::new(&self.database, &self.ledger, &self.api.url())
    }

    /// A server process.
    async fn start(&self) -> Process {
        self.start_with(|_| {}).await
    }

    async fn start_with(&self, change: impl FnOnce(&mut Settings)) -> Process {
        self.start_as("outside", change).await
    }

    /// A server process that Postgres knows by a name.
    async fn start_as(&self, name: &str, change: impl FnOnce(&mut Settings)) -> Process {
        let mut settings = self.settings();
        change(&mut settings);
        let program = env!("CARGO_BIN_EXE_ledger-server");
        settings.start(program, name).await
    }

    /// An engine of the same application, for an operator.
    fn operator(&self) -> Idempotency<D::Store> {
        let server = Server::<D>::on(self.database.store(2), &self.settings());
        server.idempotency().clone()
    }

    /// The only record.
    async fn record(&self) -> RecordInfo {
        let operator = self.operator();
        let query = RecordQuery::default();
        let listed = operator.engine().list(&query).await.unwrap();
        let [record] = &*listed else {
            panic!("one record: {listed:?}");
        };
        operator.engine().show(record.id).await.unwrap().unwrap()
    }

    async fn status(&self) -> RecordStatus {
        self.record().await.status
    }

    /// Lets the leases of all records end, without anybody's waiting.
    async fn end_leases(&self) {
        self.database.age(Policy::DEFAULT_LEASE + SECOND).await;
    }
}

/// Nobody knows whether the call acted, and it will not be run again.
fn assert_is_in_doubt(answer: &Answer) {
    assert_eq!(
        answer.refusal(),
        "idempotency_outcome_unknown",
        "{}",
        answer.line
    );
    assert_eq!(answer.outcome(), "unknown");
    assert_eq!(answer.refused()["action"], "ask_operator");
}

/// Nobody knows whether the call acted, and a retry finds out.
fn assert_a_retry_finds_out(answer: &Answer) {
    assert_eq!(
        answer.refusal(),
        "idempotency_outcome_unknown",
        "{}",
        answer.line
    );
    assert_eq!(answer.refused()["action"], "retry_same_key");
}

/// The payment's number, of a call that succeeded.
fn paid(answer: &Answer) -> &str {
    let result = &answer.result()["structuredContent"];
    result["id"].as_str().unwrap()
}
