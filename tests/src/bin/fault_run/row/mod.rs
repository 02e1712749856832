//! What is tried: each fault on each transport, store and mode where it can happen.

mod fault;
mod list;
mod name;

use serde::{Deserialize, Serialize};

pub(crate) use self::fault::{Fault, Flushes, Full, Need, Standby};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoreKind {
    Postgres,
    Sqlite,
    Memory,
    Redis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Stdio,
    Http,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    Transaction,
    Lease,
    /// A lease, with a row that commits together with the record.
    LateTransaction,
    /// Controls: the judge has to find fault with them.
    Unprotected,
    RerunWithoutKey,
    Planted(Defect),
}

/// What is wrong with a server that is there to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Defect {
    /// Nothing: the same small server without a defect.
    None,
    RecordAfterCommit,
    ReleaseOnError,
    ConflictUnchecked,
    TokenReused,
    ScopeIgnored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) fault: Fault,
    pub(crate) transport: Transport,
    pub(crate) store: StoreKind,
    pub(crate) mode: Mode,
}

impl Row {
    /// Whether this call may be left in doubt. A kill that finds a call at some point finds others wherever
    /// they happen to be.
    pub(crate) fn may_leave_doubt_of(&self, call: usize) -> bool {
        let in_lease = matches!(self.mode, Mode::Lease | Mode::LateTransaction);
        let is_beside = matches!(self.fault, Fault::Kill(_)) && call >= self.stopping();
        in_lease && (is_beside || self.fault.may_leave_doubt())
    }

    pub(crate) fn may_leave_doubt(&self) -> bool {
        self.may_leave_doubt_of(self.stopping())
    }

    /// Whether the judge has to find something.
    pub(crate) const fn is_wrong(&self) -> bool {
        match self.mode {
            Mode::Unprotected | Mode::RerunWithoutKey => true,
            Mode::Planted(defect) => !matches!(defect, Defect::None),
            Mode::Transaction | Mode::Lease | Mode::LateTransaction => self.fault.loses_commits(),
        }
    }

    /// Whether these are the kinds of findings that the judge should come to.
    pub(crate) fn finds_as_it_should(&self, found: &[&str]) -> bool {
        // Record and effect are lost together, and then somebody runs it again who should get a replay.
        const TOGETHER: [&str; 3] = [
            "successes differ",
            "success of another execution than the effect's",
            "effect without a record",
        ];
        let Some(loss) = self.fault.loss(self.mode) else {
            return found.is_empty() != self.is_wrong();
        };
        let is_known = |it: &&str| self.mode != Mode::Transaction || TOGETHER.contains(it);
        found.contains(&loss) && found.iter().all(is_known)
    }

    /// Whether the short form has it too. Of those that take long it has one for each fault.
    pub(crate) const fn is_in_short(&self) -> bool {
        match (self.transport, self.mode) {
            (Transport::Stdio, Mode::Transaction) => true,
            (Transport::Stdio, _) => !self.fault.is_dear(),
            (Transport::Http, _) => {
                !self.fault.is_dear() && !self.fault.is_at_any_transport_alike()
            }
        }
    }

    /// Whether an effect is a row of the store's database.
    pub(crate) const fn writes_rows(&self) -> bool {
        match self.mode {
            Mode::Transaction | Mode::LateTransaction => true,
            Mode::Planted(defect) => {
                !matches!(defect, Defect::ReleaseOnError | Defect::ScopeIgnored)
            }
            Mode::Lease | Mode::Unprotected | Mode::RerunWithoutKey => false,
        }
    }

    /// How many calls stop for the fault. SQLite has one writer.
    pub(crate) const fn stopping(&self) -> usize {
        match (self.store, self.mode) {
            (StoreKind::Sqlite, Mode::Transaction) => 1,
            _ => 4,
        }
    }

    pub(crate) const fn tool(&self) -> &'static str {
        match self.mode {
            Mode::LateTransaction => "act_late",
            Mode::Unprotected => "act_bare",
            Mode::RerunWithoutKey => "act_again",
            Mode::Planted(Defect::ReleaseOnError) => "act_and_release",
            _ => "act",
        }
    }
}
