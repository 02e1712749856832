//! The faults that are played, around one outside call.

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::json;

use super::{
    api::{Api, Behaviour, Counts},
    call::{Call, Seen, summary},
};
use crate::{
    database::Database,
    payments::outside::Place,
    process::{Server, until},
};

/// Which tool calls which API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the report shows each of them")]
pub enum Pairing {
    /// A tool that runs again, and an API that recognises a key.
    RerunWithKeys,
    /// A tool that runs again, and an API that takes no notice of keys.
    RerunWithoutKeys,
    /// A tool that does not run again, and an API that takes no notice of keys.
    FailWithoutKeys,
}

impl Pairing {
    /// All of them.
    pub const ALL: [Self; 3] = [
        Self::RerunWithKeys,
        Self::RerunWithoutKeys,
        Self::FailWithoutKeys,
    ];

    const fn honours_keys(self) -> bool {
        matches!(self, Self::RerunWithKeys)
    }

    fn call(self) -> Call {
        let (tool, arguments) = match self {
            Self::RerunWithKeys | Self::RerunWithoutKeys => (
                "pay_invoice",
                json!({ "invoice": SUBJECT, "amount_cents": 1999 }),
            ),
            Self::FailWithoutKeys => (
                "send_receipt",
                json!({ "customer": SUBJECT, "message": "thank you" }),
            ),
        };
        let arguments = arguments.as_object().cloned().unwrap_or_default();
        Call::new(tool, arguments)
    }
}

const SUBJECT: &str = "2026-117";

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the report shows each of them")]
pub enum Fault {
    /// The API acts, and its answer comes too late.
    TimesOut,
    /// The API acts, and says that it failed.
    FailsAfterActing,
    /// The API acts, and its answer makes no sense: the handler returns the error with `?`.
    Mumbles,
    /// The API is too slow twice in a row.
    SlowTwice,
    /// The server is killed before it calls the API.
    KilledBefore,
    /// The server is killed while the API has its request.
    KilledDuring,
    /// The server is killed when it has the API's answer, and has not recorded it.
    KilledAfter,
    /// The server freezes until another one has its call, and then wakes up.
    Paused,
}

/// What came of a fault.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What went wrong.
    pub fault: Fault,
    /// For whom.
    pub pairing: Pairing,
    /// What the API counted.
    pub counts: Counts,
    /// The rows that `pay_invoice` wrote.
    pub rows: usize,
    /// What the client saw, in the order of its calls.
    pub seen: Vec<Seen>,
}

/// A lease in milliseconds: so long does a retry wait after a kill.
const LEASE_MS: u64 = 1500;
const TIMEOUT_MS: u64 = 400;
/// So long that it does not end by itself.
const FOREVER_MS: u64 = 600_000;

impl Fault {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::TimesOut,
        Self::FailsAfterActing,
        Self::Mumbles,
        Self::SlowTwice,
        Self::KilledBefore,
        Self::KilledDuring,
        Self::KilledAfter,
        Self::Paused,
    ];

    /// Its name in the report.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::TimesOut => "API acts, answers too late",
            Self::FailsAfterActing => "API acts, answers 500",
            Self::Mumbles => "API acts, answers nonsense; `?`",
            Self::SlowTwice => "API is too slow twice",
            Self::KilledBefore => "server killed before the call",
            Self::KilledDuring => "server killed during the call",
            Self::KilledAfter => "server killed after the call",
            Self::Paused => "server paused past its lease",
        }
    }

    fn planned(self) -> Vec<Behaviour> {
        match self {
            Self::TimesOut | Self::KilledDuring | Self::Paused => vec![Behaviour::ActThenWait],
            Self::SlowTwice => vec![Behaviour::ActThenWait; 2],
            Self::FailsAfterActing => vec![Behaviour::ActThenFail],
            Self::Mumbles => vec![Behaviour::ActThenMumble],
            Self::KilledBefore | Self::KilledAfter => Vec::new(),
        }
    }

    /// Plays it, in a directory and a database of its own.
    ///
    /// # Errors
    ///
    /// A server does not start, or something does not happen in time.
    pub async fn play(
        self,
        pairing: Pairing,
        directory: PathBuf,
        database: Database,
    ) -> anyhow::Result<Outcome> {
        fs::create_dir(&directory)?;
        database.prepare().await?;
        let stage = Stage {
            api: Api::start(pairing.honours_keys(), self.planned()).await?,
            call: pairing.call(),
            directory,
            database,
        };
        let outcome = self.play_on(&stage, pairing).await;
        // Also after a failure.
        let removed = stage.database.remove().await;
        let outcome = outcome?;
        removed?;
        Ok(outcome)
    }

    async fn play_on(self, stage: &Stage, pairing: Pairing) -> anyhow::Result<Outcome> {
        let seen = match self {
            Self::TimesOut | Self::FailsAfterActing | Self::Mumbles | Self::SlowTwice => {
                stage.failing_api().await?
            }
            Self::KilledBefore => stage.killed(Some(Place::BeforeCall)).await?,
            Self::KilledDuring => stage.killed(None).await?,
            Self::KilledAfter => stage.killed(Some(Place::AfterCall)).await?,
            Self::Paused => stage.paused().await?,
        };
        let query = "SELECT count(*) FROM payments WHERE invoice = $1";
        Ok(Outcome {
            fault: self,
            pairing,
            counts: stage.api.counts(),
            rows: stage
                .database
                .count(&stage.directory, query, SUBJECT)
                .await?,
            seen,
        })
    }
}

impl Outcome {
    /// Whether this is what has to happen; if not, what is wrong.
    ///
    /// # Errors
    ///
    /// It is not.
    pub fn check(&self) -> Result<(), String> {
        let Counts {
            calls,
            keys,
            charges,
        } = self.counts;
        let results: BTreeSet<_> = self
            .seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::Result(id) | Seen::Replay(id) => Some(id),
                _ => None,
            })
            .collect();
        let has_result = results.len() == 1;
        let is_right = match self.pairing {
            Pairing::RerunWithKeys => charges == 1 && keys == 1 && self.rows == 1 && has_result,
            // Nothing is promised of the API here, but of our own side.
            Pairing::RerunWithoutKeys => keys == 1 && self.rows == 1 && has_result,
            Pairing::FailWithoutKeys => calls <= 1 && charges <= 1,
        };
        if is_right {
            return Ok(());
        }
        Err(format!(
            "{} ({:?}): {calls} calls, {keys} keys, {charges} charges, {} rows, and the client saw {}",
            self.fault.label(),
            self.pairing,
            self.rows,
            summary(&self.seen)
        ))
    }
}

/// What a fault has for itself.
struct Stage {
    api: Api,
    call: Call,
    directory: PathBuf,
    database: Database,
}

impl Stage {
    async fn start(
        &self,
        name: &str,
        timeout_ms: u64,
        hold_at: Option<Place>,
    ) -> anyhow::Result<Server> {
        let log = self.directory.join(format!("{name}.log"));
        Server::start(&log, false, |command| {
            command
                .args(self.database.arguments(&self.directory))
                .arg("--ledger")
                .arg(self.ledger())
                .args(["--payment-url", &self.api.url()])
                .args(["--receipt-url", &self.api.url()])
                .args(["--lease-ms", &LEASE_MS.to_string()])
                .args(["--outside-timeout-ms", &timeout_ms.to_string()]);
            let option = match hold_at {
                Some(Place::BeforeCall) => "--hold-before-call-ms",
                Some(Place::AfterCall) => "--hold-after-call-ms",
                None => return,
            };
            command.args([option, &FOREVER_MS.to_string()]);
        })
        .await
    }

    fn ledger(&self) -> PathBuf {
        self.directory.join("ledger")
    }

    async fn failing_api(&self) -> anyhow::Result<Vec<Seen>> {
        let server = self.start("only", TIMEOUT_MS, None).await?;
        let mut seen = Vec::new();
        self.call
            .send_until_final(&server.peer(), &mut seen)
            .await?;
        server.stop().await?;
        Ok(seen)
    }

    /// The server is killed where it is held, or while the API has its request.
    async fn killed(&self, hold_at: Option<Place>) -> anyhow::Result<Vec<Seen>> {
        let server = self.start("first", FOREVER_MS, hold_at).await?;
        let first = self.spawn(&server);
        match hold_at {
            Some(place) => self.until_noted(place).await?,
            None => self.until_called().await?,
        }
        server.kill().await?;
        let mut seen = vec![first.await??];
        let server = self.start("second", FOREVER_MS, None).await?;
        self.call
            .send_until_final(&server.peer(), &mut seen)
            .await?;
        server.stop().await?;
        Ok(seen)
    }

    async fn paused(&self) -> anyhow::Result<Vec<Seen>> {
        let paused = self.start("paused", FOREVER_MS, None).await?;
        let first = self.spawn(&paused);
        self.until_called().await?;
        paused.pause().await?;
        let other = self.start("other", FOREVER_MS, None).await?;
        let mut seen = Vec::new();
        let retried = self.call.send_until_final(&other.peer(), &mut seen).await;
        // Leave no frozen process behind, no matter how the retry ended.
        self.api.open_gate();
        paused.resume().await?;
        retried?;
        // It has the API's answer, and comes too late with it.
        seen.push(first.await??);
        self.call
            .send_until_final(&paused.peer(), &mut seen)
            .await?;
        paused.stop().await?;
        other.stop().await?;
        Ok(seen)
    }

    fn spawn(&self, server: &Server) -> tokio::task::JoinHandle<anyhow::Result<Seen>> {
        let (call, peer) = (self.call.clone(), server.peer());
        tokio::spawn(async move { call.send(&peer).await })
    }

    async fn until_called(&self) -> anyhow::Result<()> {
        until("the call to the API", || async {
            Ok((self.api.counts().calls > 0).then_some(()))
        })
        .await
    }

    async fn until_noted(&self, place: Place) -> anyhow::Result<()> {
        let note = format!("{} {SUBJECT}\n", place.note());
        until("the handler", || async {
            let ledger = fs::read_to_string(self.ledger())?;
            Ok(ledger.contains(&note).then_some(()))
        })
        .await
    }
}
