//! What is done to both tools, and what has to come of it.

use std::time::Duration;

use rmcp::{Peer, RoleClient};

use super::{
    call::{Call, Seen, different_charges, summary},
    server::{Site, Start},
};
use crate::process::until;

/// Which tool is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two columns")]
pub enum Side {
    /// The one that runs every time.
    Unprotected,
    /// The one with `#[idempotent]`.
    Protected,
}

impl Side {
    /// The tool's name.
    #[must_use]
    pub const fn tool(self) -> &'static str {
        match self {
            Self::Unprotected => "charge_card_unprotected",
            Self::Protected => "charge_card",
        }
    }
}

/// What is done to a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the report shows each of them")]
pub enum Case {
    /// The client repeats itself.
    InARow,
    /// The client repeats itself before there is an answer.
    AtOnce,
    /// The client gives up, says so, and tries again.
    TimeOut,
    /// The server dies between the write and COMMIT.
    KilledBeforeCommit,
    /// The server dies between COMMIT and the answer.
    KilledAfterCommit,
    /// The client uses a key for something else.
    OtherArguments,
}

/// What came of a case.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// What was done.
    pub case: Case,
    /// To which tool.
    pub side: Side,
    /// How often it ran to its write.
    pub executions: usize,
    /// How many charges were committed.
    pub charges: usize,
    /// What the client saw of its calls.
    pub seen: Vec<Seen>,
}

/// So long that it does not end by itself.
const FOREVER_MS: u64 = 600_000;

impl Case {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::InARow,
        Self::AtOnce,
        Self::TimeOut,
        Self::KilledBeforeCommit,
        Self::KilledAfterCommit,
        Self::OtherArguments,
    ];

    /// Its place in the report.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::InARow => 'a',
            Self::AtOnce => 'b',
            Self::TimeOut => 'c',
            Self::KilledBeforeCommit => 'd',
            Self::KilledAfterCommit => 'e',
            Self::OtherArguments => 'f',
        }
    }

    /// Its name in the report.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::InARow => "five equal calls in a row",
            Self::AtOnce => "five equal calls at once",
            Self::TimeOut => "timeout, cancel, retry",
            Self::KilledBeforeCommit => "killed before COMMIT, retry",
            Self::KilledAfterCommit => "killed after COMMIT, retry",
            Self::OtherArguments => "same key, other arguments",
        }
    }

    /// Executions, charges and what the client saw, as they have to be.
    const fn expected(self, side: Side) -> (usize, usize, &'static str) {
        match (self, side) {
            (Self::InARow | Self::AtOnce, Side::Unprotected) => (5, 5, "5 receipts"),
            (Self::InARow | Self::AtOnce, Side::Protected) => (1, 1, "receipt, 4 replays"),
            (Self::TimeOut, Side::Unprotected) => (2, 2, "timeout, receipt"),
            (Self::TimeOut, Side::Protected) => (1, 1, "timeout, replay"),
            (Self::KilledBeforeCommit | Self::KilledAfterCommit, Side::Unprotected) => {
                (2, 2, "cut off, receipt")
            }
            // The first execution was rolled back by the crash: two executions, one effect.
            (Self::KilledBeforeCommit, Side::Protected) => (2, 1, "cut off, receipt"),
            (Self::KilledAfterCommit, Side::Protected) => (1, 1, "cut off, replay"),
            (Self::OtherArguments, Side::Unprotected) => (2, 2, "2 receipts"),
            (Self::OtherArguments, Side::Protected) => (1, 1, "receipt, key_conflict"),
        }
    }

    /// Does it.
    ///
    /// # Errors
    ///
    /// A server does not start, or something does not happen in time.
    pub async fn run(self, side: Side, site: Site) -> anyhow::Result<Outcome> {
        let call = Call::new(side.tool(), site.customer(), site.customer());
        let seen = match self {
            Self::InARow => in_a_row(&site, &call).await,
            Self::AtOnce => at_once(&site, &call).await,
            Self::TimeOut => time_out(&site, &call).await,
            Self::KilledBeforeCommit => killed_before_commit(&site, &call, side).await,
            Self::KilledAfterCommit => killed_after_commit(&site, &call).await,
            Self::OtherArguments => other_arguments(&site, &call).await,
        }?;
        Ok(Outcome {
            case: self,
            side,
            executions: site.executions()?,
            charges: site.charges().await?,
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
        let (executions, charges, seen) = self.case.expected(self.side);
        let summary = summary(&self.seen);
        if (self.executions, self.charges, &*summary) != (executions, charges, seen) {
            return Err(format!(
                "{}) {}, {}: expected {executions} executions, {charges} charges and {seen:?}, \
                 found {} executions, {} charges and {summary:?}",
                self.case.letter(),
                self.case.label(),
                self.side.tool(),
                self.executions,
                self.charges,
            ));
        }
        if self.side == Side::Protected && different_charges(&self.seen) != 1 {
            return Err(format!(
                "{}) {}: the client was given receipts of different charges: {:?}",
                self.case.letter(),
                self.case.label(),
                self.seen
            ));
        }
        Ok(())
    }
}

async fn in_a_row(site: &Site, call: &Call) -> anyhow::Result<Vec<Seen>> {
    let server = site.start(Start::default()).await?;
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(call.send(&server.peer()).await?);
    }
    server.stop().await?;
    Ok(seen)
}

async fn at_once(site: &Site, call: &Call) -> anyhow::Result<Vec<Seen>> {
    // Held, so that the calls overlap.
    let start = Start {
        hold_ms: 300,
        ..Start::default()
    };
    let server = site.start(start).await?;
    let calls: Vec<_> = (0..5).map(|_| spawn(call, server.peer())).collect();
    let mut seen = Vec::new();
    for call in calls {
        seen.push(call.await??);
    }
    server.stop().await?;
    Ok(seen)
}

async fn time_out(site: &Site, call: &Call) -> anyhow::Result<Vec<Seen>> {
    let start = Start {
        http: true,
        hold_ms: 1500,
        ..Start::default()
    };
    let server = site.start(start).await?;
    // On a slow machine the client would otherwise give up before the tool has begun.
    let begun = until_written(site);
    let patience = Duration::from_millis(200);
    let peer = server.peer();
    let seen = vec![
        call.send_with_timeout(&peer, patience, begun).await?,
        call.send(&peer).await?,
    ];
    server.stop().await?;
    Ok(seen)
}

async fn killed_before_commit(site: &Site, call: &Call, side: Side) -> anyhow::Result<Vec<Seen>> {
    let start = Start {
        hold_ms: FOREVER_MS,
        ..Start::default()
    };
    let server = site.start(start).await?;
    let first = spawn(call, server.peer());
    until_written(site).await?;
    server.kill().await?;
    // Without protection there is no such moment: it has committed before it waits.
    if side == Side::Protected {
        let charges = site.charges().await?;
        anyhow::ensure!(
            charges == 0,
            "the server had committed before it was killed"
        );
    }
    retried_after_restart(site, call, first.await??).await
}

async fn killed_after_commit(site: &Site, call: &Call) -> anyhow::Result<Vec<Seen>> {
    let start = Start {
        answer_delay_ms: FOREVER_MS,
        ..Start::default()
    };
    let server = site.start(start).await?;
    let first = spawn(call, server.peer());
    // The unprotected tool commits first and writes its line into the ledger after that.
    let committed = || async {
        let done = site.charges().await? > 0 && site.executions()? > 0;
        Ok(done.then_some(()))
    };
    until("the commit", committed).await?;
    server.kill().await?;
    retried_after_restart(site, call, first.await??).await
}

async fn retried_after_restart(site: &Site, call: &Call, first: Seen) -> anyhow::Result<Vec<Seen>> {
    let server = site.start(Start::default()).await?;
    let retry = call.send(&server.peer()).await?;
    server.stop().await?;
    Ok(vec![first, retry])
}

async fn other_arguments(site: &Site, call: &Call) -> anyhow::Result<Vec<Seen>> {
    let server = site.start(Start::default()).await?;
    let mut other = call.clone();
    other.amount_cents += 1;
    let seen = vec![
        call.send(&server.peer()).await?,
        other.send(&server.peer()).await?,
    ];
    server.stop().await?;
    Ok(seen)
}

/// Until the tool has written. Its line comes after the INSERT, and then the charge is held.
async fn until_written(site: &Site) -> anyhow::Result<()> {
    let written = || async { Ok((site.executions()? > 0).then_some(())) };
    until("the write", written).await
}

fn spawn(call: &Call, peer: Peer<RoleClient>) -> tokio::task::JoinHandle<anyhow::Result<Seen>> {
    let call = call.clone();
    tokio::spawn(async move { call.send(&peer).await })
}
