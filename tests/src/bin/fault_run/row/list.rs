//! Every row, in the order of the table.

use super::{Defect, Fault, Flushes, Full, Mode, Row, Standby, StoreKind, Transport};
use crate::server::{Point, Trouble};

impl Row {
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
        let machines = [
            Fault::KillPooler,
            Fault::FailOver(Standby::Synchronous),
            Fault::LosePower(Flushes::Every),
            Fault::SlowFlush,
            Fault::StallDisk,
            Fault::Fill(Full::Record),
            Fault::Fill(Full::Log),
        ];
        let full_for_effect = [Fault::Fill(Full::Effect)];
        let secrets = [Fault::TwoSecrets, Fault::Deploy];
        let redis = [Fault::KillRedis, Fault::FreezeRedis];
        for transport in [Transport::Stdio, Transport::Http] {
            let mut on = |store, modes: &[Mode], faults: &[Fault]| {
                add(transport, store, modes, faults);
            };
            on(StoreKind::Postgres, &every, &kills);
            on(StoreKind::Postgres, &every, &fails);
            on(StoreKind::Postgres, &every, &database);
            on(StoreKind::Postgres, &every, &machines);
            on(StoreKind::Postgres, &[Transaction], &full_for_effect);
            on(
                StoreKind::Postgres,
                &[Transaction, LateTransaction],
                &commits,
            );
            on(StoreKind::Postgres, &every, &secrets);
            on(StoreKind::Sqlite, &every[..2], &kills);
            on(StoreKind::Sqlite, &every[..2], &secrets);
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

    /// Servers with something wrong, each with a fault that shows it; and a small one that is right. And
    /// databases that lose what they have committed.
    fn controls() -> impl Iterator<Item = Self> {
        let killed = Fault::Kill(Point::AfterEffect);
        let fails = Fault::Within(Trouble::FailAfterEffect);
        let parted = Fault::FailOver(Standby::Asynchronous);
        let unflushed = Fault::LosePower(Flushes::None);
        let planted = [
            (Mode::Transaction, parted),
            (Mode::Lease, parted),
            (Mode::Transaction, unflushed),
            (Mode::Lease, unflushed),
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
