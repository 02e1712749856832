//! What is tried: each fault on each transport, store and mode where it can happen.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::server::{Point, Trouble};

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
pub(crate) enum Fault {
    /// None but callers that race.
    Racers,
    /// SIGKILL of the server process, while calls stand at this point.
    Kill(Point),
    /// SIGKILL of the server process, while a COMMIT of its is on the way.
    KillAtCommit,
    /// The client ends the connection, and the server ends with it.
    HangUp,
    /// SIGSTOP until the lease has ended, then SIGCONT.
    Freeze,
    /// The sessions of calls that run are terminated.
    EndSessions,
    /// The whole cluster stops at once, and starts again.
    StopCluster,
    /// The connections to the database are cut, and the database does not notice.
    CutDatabase,
    /// A connection to the database falls silent at some message.
    SilenceDatabase,
    /// The database commits, and its answer is lost.
    LoseCommitAnswer,
    /// COMMIT does not reach the database.
    LoseCommit,
    /// The connections of the callers are cut, and the server does not notice.
    CutCallers,
    /// The connections of the callers fall silent.
    SilenceCallers,
    /// Calls hold all connections of a pool.
    ExhaustPool,
    Within(Trouble),
    /// SIGKILL of Redis, and a start from its append-only file.
    KillRedis,
    /// SIGSTOP of Redis for longer than anybody waits for it.
    FreezeRedis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) fault: Fault,
    pub(crate) transport: Transport,
    pub(crate) store: StoreKind,
    pub(crate) mode: Mode,
}

impl Fault {
    /// Where calls stop for it to happen.
    pub(crate) const fn point(self) -> Option<Point> {
        match self {
            Self::Kill(point) => Some(point),
            Self::HangUp
            | Self::Freeze
            | Self::EndSessions
            | Self::StopCluster
            | Self::CutDatabase
            | Self::CutCallers
            | Self::SilenceCallers
            | Self::ExhaustPool
            | Self::KillRedis
            | Self::FreezeRedis => Some(Point::AfterEffect),
            Self::Racers
            | Self::KillAtCommit
            | Self::SilenceDatabase
            | Self::LoseCommitAnswer
            | Self::LoseCommit
            | Self::Within(_) => None,
        }
    }

    /// Whether it may leave a call of lease mode in doubt: the process that runs it is gone or late, or
    /// cannot reach its store.
    const fn may_leave_doubt(self) -> bool {
        !matches!(
            self,
            Self::Racers
                | Self::Kill(Point::AfterRecord)
                | Self::CutCallers
                | Self::SilenceCallers
                | Self::ExhaustPool
        )
    }

    pub(crate) const fn is_at_the_database(self) -> bool {
        matches!(
            self,
            Self::KillAtCommit
                | Self::CutDatabase
                | Self::SilenceDatabase
                | Self::LoseCommitAnswer
                | Self::LoseCommit
        )
    }

    pub(crate) const fn is_at_the_callers(self) -> bool {
        matches!(self, Self::CutCallers | Self::SilenceCallers)
    }
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
            Mode::Transaction | Mode::Lease | Mode::LateTransaction => false,
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

    pub(crate) fn all() -> Vec<Self> {
        use Mode::{LateTransaction, Lease, Transaction};
        let mut rows = Vec::new();
        let mut add = |transport, store, modes: &[Mode], faults: &[Fault]| {
            for &fault in faults {
                rows.extend(modes.iter().map(|&mode| Self {
                    fault,
                    transport,
                    store,
                    mode,
                }));
            }
        };
        let every = [Transaction, Lease, LateTransaction];
        let kills = [
            Fault::Racers,
            Fault::Kill(Point::BeforeEffect),
            Fault::Kill(Point::AfterEffect),
            Fault::Kill(Point::AfterRecord),
            Fault::Freeze,
        ];
        let fails = [Fault::Within(Trouble::FailAfterEffect)];
        let callers = [Fault::CutCallers, Fault::SilenceCallers];
        let database = [
            Fault::EndSessions,
            Fault::StopCluster,
            Fault::CutDatabase,
            Fault::SilenceDatabase,
        ];
        let commits = [
            Fault::KillAtCommit,
            Fault::LoseCommitAnswer,
            Fault::LoseCommit,
            Fault::ExhaustPool,
        ];
        let full = [
            Fault::Within(Trouble::FullForEffect),
            Fault::Within(Trouble::FullForRecord),
        ];
        let redis = [Fault::KillRedis, Fault::FreezeRedis];
        for transport in [Transport::Stdio, Transport::Http] {
            let mut on = |store, modes: &[Mode], faults: &[Fault]| {
                add(transport, store, modes, faults);
            };
            on(StoreKind::Postgres, &every, &kills);
            on(StoreKind::Postgres, &every, &fails);
            on(StoreKind::Postgres, &every, &database);
            on(
                StoreKind::Postgres,
                &[Transaction, LateTransaction],
                &commits,
            );
            on(StoreKind::Sqlite, &every[..2], &kills);
            on(StoreKind::Sqlite, &every[..2], &fails);
            on(StoreKind::Sqlite, &[Transaction], &full);
            on(StoreKind::Redis, &[Lease], &kills);
            on(StoreKind::Redis, &[Lease], &redis);
            on(StoreKind::Memory, &[Lease], &kills[..1]);
            on(StoreKind::Memory, &[Lease], &fails);
        }
        // Over stdio the end of a connection is the end of the server.
        let (stdio, http) = (Transport::Stdio, Transport::Http);
        add(stdio, StoreKind::Postgres, &every, &[Fault::HangUp]);
        add(stdio, StoreKind::Sqlite, &every[..2], &[Fault::HangUp]);
        add(stdio, StoreKind::Redis, &[Lease], &[Fault::HangUp]);
        add(http, StoreKind::Postgres, &every, &callers);
        add(http, StoreKind::Sqlite, &every[..2], &callers);
        add(http, StoreKind::Memory, &[Lease], &callers);
        rows.extend(Self::controls());
        rows
    }

    /// Servers with something wrong, each with a fault that shows it; and a small one that is right.
    fn controls() -> impl Iterator<Item = Self> {
        let killed = Fault::Kill(Point::AfterEffect);
        let fails = Fault::Within(Trouble::FailAfterEffect);
        let planted = [
            (Mode::Unprotected, Fault::Kill(Point::AfterEffect)),
            (Mode::RerunWithoutKey, killed),
            (Mode::Planted(Defect::None), killed),
            (Mode::Planted(Defect::None), Fault::Freeze),
            (Mode::Planted(Defect::RecordAfterCommit), killed),
            (Mode::Planted(Defect::ReleaseOnError), fails),
            (Mode::Planted(Defect::ConflictUnchecked), Fault::Racers),
            (Mode::Planted(Defect::TokenReused), Fault::Freeze),
            (Mode::Planted(Defect::ScopeIgnored), Fault::Racers),
        ];
        planted.into_iter().map(|(mode, fault)| Self {
            fault,
            transport: Transport::Stdio,
            store: StoreKind::Postgres,
            mode,
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Racers => "2 to 16 callers race",
            Self::Kill(Point::BeforeEffect) => "SIGKILL after the claim, before the effect",
            Self::Kill(Point::AfterEffect) => "SIGKILL after the effect, before the record",
            Self::Kill(Point::AfterRecord) => "SIGKILL after the record, before the answer",
            Self::KillAtCommit => "SIGKILL with COMMIT on its way",
            Self::HangUp => "client hangs up, and its server ends",
            Self::Freeze => "SIGSTOP past the lease, SIGCONT",
            Self::EndSessions => "sessions terminated",
            Self::StopCluster => "cluster stopped at once, and restarted",
            Self::CutDatabase => "connections to the database cut",
            Self::SilenceDatabase => "connection to the database silent from some message on",
            Self::LoseCommitAnswer => "answer to COMMIT lost",
            Self::LoseCommit => "COMMIT lost",
            Self::CutCallers => "connections of callers cut",
            Self::SilenceCallers => "connections of callers silent",
            Self::ExhaustPool => "pool exhausted",
            Self::Within(Trouble::FailAfterEffect) => "handler fails after its effect",
            Self::Within(Trouble::FullForEffect) => "disk full for the effect",
            Self::Within(Trouble::FullForRecord) => "disk full for the record",
            Self::KillRedis => "SIGKILL of Redis, restart from its file",
            Self::FreezeRedis => "SIGSTOP of Redis",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Transaction => "transaction",
            Self::Lease => "lease",
            Self::LateTransaction => "lease with transaction",
            Self::Unprotected => "unprotected",
            Self::RerunWithoutKey => "lease, `rerun` without downstream key",
            Self::Planted(Defect::None) => "small server without a defect",
            Self::Planted(Defect::RecordAfterCommit) => "planted: record after the commit",
            Self::Planted(Defect::ReleaseOnError) => "planted: key released on an error",
            Self::Planted(Defect::ConflictUnchecked) => "planted: conflict unchecked in progress",
            Self::Planted(Defect::TokenReused) => "planted: token reused",
            Self::Planted(Defect::ScopeIgnored) => "planted: scope ignored",
        })
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Postgres => "Postgres",
            Self::Sqlite => "SQLite",
            Self::Memory => "memory",
            Self::Redis => "Redis",
        })
    }
}

impl fmt::Display for Row {
    /// As it is selected on the command line.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match self.transport {
            Transport::Stdio => "stdio",
            Transport::Http => "HTTP",
        };
        write!(
            out,
            "{} | {transport} | {} | {}",
            self.fault, self.store, self.mode
        )
    }
}
