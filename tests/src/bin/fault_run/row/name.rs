//! What rows are called, in the table and on the command line.

use std::fmt;

use super::{Defect, Fault, Flushes, Full, Mode, Row, Standby, StoreKind, Transport};
use crate::server::{Point, Trouble};

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Racers => "2 to 16 callers race",
            Self::TwoSecrets => "2 to 16 callers race, at processes with one secret and with two",
            Self::Kill(Point::BeforeEffect) => "SIGKILL after the claim, before the effect",
            Self::Kill(Point::AfterEffect) => "SIGKILL after the effect, before the record",
            Self::Kill(Point::AfterRecord) => "SIGKILL after the record, before the answer",
            Self::KillAtCommit => "SIGKILL with COMMIT on its way",
            Self::Deploy => "SIGKILL with the one secret, restart with two",
            Self::HangUp => "client hangs up, and its server ends",
            Self::Freeze => "SIGSTOP past the lease, SIGCONT",
            Self::EndSessions => "sessions terminated",
            Self::StopCluster => "cluster stopped at once, and restarted",
            Self::FailOver(Standby::Synchronous) => "primary lost, synchronous standby promoted",
            Self::FailOver(Standby::Asynchronous) => "primary lost, asynchronous standby promoted",
            Self::LosePower(Flushes::Every) => "power of the database lost",
            Self::LosePower(Flushes::None) => "power of the database lost, `fsync = off`",
            Self::SlowFlush => "every flush of the database slow",
            Self::StallDisk => "disk of the database stalled",
            Self::KillPooler => "SIGKILL of pgbouncer, and a new one",
            Self::Fill(Full::Effect) => "disk full for the effect",
            Self::Fill(Full::Record) => "disk full for the record",
            Self::Fill(Full::Log) => "disk full for the log of the database",
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
