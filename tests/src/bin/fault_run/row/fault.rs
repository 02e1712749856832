//! What happens to the calls.

use super::Mode;
use crate::server::{Point, Trouble};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None but callers that race.
    Racers,
    /// Racing callers at two processes, one of which has a new secret beside the one that both have.
    TwoSecrets,
    /// SIGKILL of the server process, while calls stand at this point.
    Kill(Point),
    /// SIGKILL of the server process, while a COMMIT of its is on the way.
    KillAtCommit,
    /// SIGKILL of the server process, after which it comes back with a new secret beside the old one.
    Deploy,
    /// The client ends the connection, and the server ends with it.
    HangUp,
    /// SIGSTOP until the lease has ended, then SIGCONT.
    Freeze,
    /// The sessions of calls that run are terminated.
    EndSessions,
    /// The whole cluster stops at once, and starts again.
    StopCluster,
    /// The primary stops at once, and its standby takes over.
    FailOver(Standby),
    /// The machine of the database loses its power.
    LosePower(Flushes),
    /// The file system of the database is full.
    Fill(Full),
    /// Each flush of the database takes long.
    SlowFlush,
    /// The database's disk does nothing for longer than anybody waits.
    StallDisk,
    /// SIGKILL of the pooler between the first process and the database, and a new one.
    KillPooler,
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
pub(crate) enum Standby {
    /// Every commit waits for it.
    Synchronous,
    /// It has missed what was committed last.
    Asynchronous,
}

/// What Postgres does before it calls something committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushes {
    Every,
    /// `fsync = off`.
    None,
}

/// What there is no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    Effect,
    Record,
    /// The write-ahead log, without which the server cannot live.
    Log,
}

/// What a row needs that not every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    SmallDisk,
    DiskInAFile,
}

impl Fault {
    /// Nothing happens but that callers race.
    pub(crate) const fn is_race(self) -> bool {
        matches!(self, Self::Racers | Self::TwoSecrets)
    }

    /// Where calls stop for it to happen.
    pub(crate) const fn point(self) -> Option<Point> {
        match self {
            Self::Kill(point) => Some(point),
            Self::Fill(Full::Effect) => Some(Point::BeforeEffect),
            Self::HangUp
            | Self::Deploy
            | Self::Freeze
            | Self::EndSessions
            | Self::StopCluster
            | Self::FailOver(_)
            | Self::LosePower(_)
            | Self::Fill(Full::Record | Full::Log)
            | Self::SlowFlush
            | Self::StallDisk
            | Self::KillPooler
            | Self::CutDatabase
            | Self::CutCallers
            | Self::SilenceCallers
            | Self::ExhaustPool
            | Self::KillRedis
            | Self::FreezeRedis => Some(Point::AfterEffect),
            Self::Racers
            | Self::TwoSecrets
            | Self::KillAtCommit
            | Self::SilenceDatabase
            | Self::LoseCommitAnswer
            | Self::LoseCommit
            | Self::Within(_) => None,
        }
    }

    /// Whether it may leave a call of lease mode in doubt: the process that runs it is gone or late, or
    /// cannot reach its store.
    pub(super) const fn may_leave_doubt(self) -> bool {
        !matches!(
            self,
            Self::Racers
                | Self::TwoSecrets
                | Self::Kill(Point::AfterRecord)
                | Self::SlowFlush
                | Self::CutCallers
                | Self::SilenceCallers
                | Self::ExhaustPool
        )
    }

    /// Whether it takes away what was answered as committed, so that the judge has to find something.
    pub(crate) const fn loses_commits(self) -> bool {
        matches!(
            self,
            Self::FailOver(Standby::Asynchronous) | Self::LosePower(Flushes::None)
        )
    }

    /// Whether it concerns what has been answered before.
    pub(crate) const fn is_about_the_past(self) -> bool {
        matches!(self, Self::FailOver(_) | Self::LosePower(_))
    }

    /// Whether servers with only the old secret and with both serve at once.
    pub(crate) const fn has_two_secrets(self) -> bool {
        matches!(self, Self::TwoSecrets | Self::Deploy)
    }

    /// What the verdict on such a loss has to name: in transaction mode a call succeeds again, as another
    /// one, and everything of the first is gone with its record; in lease mode its effect is not.
    pub(crate) const fn loss(self, mode: Mode) -> Option<&'static str> {
        match (self.loses_commits(), mode) {
            (false, _) => None,
            (true, Mode::Transaction) => Some("successes differ"),
            (true, _) => Some("repeated effect"),
        }
    }

    pub(crate) const fn need(self) -> Option<Need> {
        match self {
            Self::Fill(_) => Some(Need::SmallDisk),
            Self::LosePower(_) | Self::StallDisk => Some(Need::DiskInAFile),
            _ => None,
        }
    }

    /// Whether a server of its own is made for it, and more.
    pub(super) const fn is_dear(self) -> bool {
        self.need().is_some() || matches!(self, Self::FailOver(_) | Self::SlowFlush)
    }

    /// Whether the way to the callers has nothing to do with it, so that one is enough to begin with.
    pub(super) const fn is_at_any_transport_alike(self) -> bool {
        matches!(self, Self::TwoSecrets | Self::Deploy | Self::KillPooler)
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
