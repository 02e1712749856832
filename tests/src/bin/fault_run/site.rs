//! Where the calls of one row happen: a store, two server processes and their ledger.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tests::{
    database::{Database as _, Sqlite, Stored, unique},
    kit::{cluster::Cluster, redis, relay::Relay},
    ledger::Ledger,
};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::{
    caller::{Place, at},
    installation::Installation,
    link::Server,
    row::{Fault, Mode, Row, StoreKind},
    server::{Secrets, Settings},
};

/// For how long a server waits for its store.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Where a lease is to end while somebody waits.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);
const LONG_LEASE: Duration = Duration::from_secs(60);

pub(crate) enum Base {
    Postgres(Box<Installation>),
    Sqlite(Sqlite),
    Memory,
    Redis(redis::Server),
}

pub(crate) struct Site {
    pub(crate) row: Row,
    pub(crate) ledger: Ledger,
    pub(crate) base: Base,
    /// The first process, which the fault happens to, and one beside it.
    pub(crate) places: [Place; 2],
    settings: Settings,
    first_address: String,
    names: [String; 2],
    _directory: TempDir,
}

impl Site {
    /// `older`: what the first process is, if not this program.
    pub(crate) async fn new(row: Row, older: Option<&Path>) -> Self {
        let directory = TempDir::new().expect("a directory");
        let ledger = Ledger::new(directory.path().join("ledger"));
        let base = Base::new(&row).await;
        let address = base.address();
        let first_address = base.first_address();
        let lease = match row.mode {
            Mode::Transaction => LONG_LEASE,
            Mode::Planted(_) | Mode::RerunWithoutKey => SHORT_LEASE,
            _ if row.may_leave_doubt() => SHORT_LEASE,
            _ => LONG_LEASE,
        };
        let settings = Settings {
            store: row.store,
            mode: row.mode,
            transport: row.transport,
            address,
            ledger: ledger.path().to_owned(),
            connections: if row.fault == Fault::ExhaustPool {
                u32::try_from(row.stopping()).expect("a small number")
            } else {
                8
            },
            patience: PATIENCE,
            lease,
            is_large: matches!(row.fault, Fault::Fill(_)),
            secrets: match row.fault.has_two_secrets() {
                true => Secrets::Old,
                false => Secrets::None,
            },
        };
        let first_settings = Settings {
            secrets: match row.fault {
                Fault::TwoSecrets => Secrets::Both,
                _ => settings.secrets,
            },
            ..settings.clone()
        };
        let names = [unique("fault"), unique("beside")];
        let first = start(&names[0], &first_settings, &first_address, &row, older).await;
        let second = if row.store == StoreKind::Memory {
            Arc::clone(&first)
        } else {
            start(&names[1], &settings, &settings.address, &row, None).await
        };
        Self {
            row,
            ledger,
            base,
            places: [first, second],
            settings,
            first_address,
            names,
            _directory: directory,
        }
    }

    /// Another process instead of the first.
    pub(crate) async fn start_again(&self) {
        self.start_again_with(self.settings.secrets).await;
    }

    pub(crate) async fn start_again_with(&self, secrets: Secrets) {
        let settings = Settings {
            secrets,
            ..self.settings.clone()
        };
        let started = start(
            &self.names[0],
            &settings,
            &self.first_address,
            &self.row,
            None,
        );
        let started = at(&started.await);
        *self.places[0].lock().expect("no panic") = started;
    }

    pub(crate) fn postgres(&mut self) -> &mut Installation {
        match &mut self.base {
            Base::Postgres(installation) => installation,
            _ => panic!("this row is on Postgres"),
        }
    }

    pub(crate) fn relay(&self) -> &Relay {
        match &self.base {
            Base::Postgres(it) => it.relay.as_ref().expect("this row has a relay"),
            _ => panic!("this row has a relay"),
        }
    }

    /// Terminates the sessions of the first process. Says how many.
    pub(crate) async fn end_sessions(&self) -> i64 {
        let Base::Postgres(installation) = &self.base else {
            return 0;
        };
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{}'",
            self.names[0]
        );
        installation.database.integer(&sql).await
    }

    /// Stops the cluster at once, and starts it again.
    pub(crate) fn restart_cluster(&mut self) {
        let cluster: &Cluster = self.postgres().cluster();
        block_in_place(|| {
            cluster.stop_immediately();
            cluster.start_again();
        });
    }

    /// The effects in the database, or none where it is not written to.
    pub(crate) async fn rows(&self) -> Vec<String> {
        match &self.base {
            Base::Postgres(installation) => installation.database.effects().await,
            Base::Sqlite(database) => database.effects().await,
            Base::Memory | Base::Redis(_) => Vec::new(),
        }
    }

    /// The records, where a database has them.
    pub(crate) async fn records(&self) -> Vec<Stored> {
        match &self.base {
            Base::Postgres(installation) => installation.database.records().await,
            Base::Sqlite(database) => database.records().await,
            Base::Memory | Base::Redis(_) => Vec::new(),
        }
    }

    /// How many sessions are left in a transaction, after a while.
    pub(crate) async fn left_in_transaction(&self) -> i64 {
        let Base::Postgres(installation) = &self.base else {
            return 0;
        };
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('{}', '{}')
             AND state LIKE 'idle in transaction%'",
            self.names[0], self.names[1]
        );
        let mut left = 0;
        for _ in 0..100 {
            left = installation.database.integer(&sql).await;
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        left
    }
}

async fn start(
    name: &str,
    settings: &Settings,
    address: &str,
    row: &Row,
    program: Option<&Path>,
) -> Place {
    let settings = Settings {
        address: address.to_owned(),
        ..settings.clone()
    };
    let server = Server::start(name, &settings, row.fault.is_at_the_callers(), program).await;
    Arc::new(Mutex::new(Arc::new(server)))
}

impl Base {
    async fn new(row: &Row) -> Self {
        match row.store {
            StoreKind::Memory => Self::Memory,
            // Under `everysec` a kill during a flush loses claims.
            StoreKind::Redis => Self::Redis(block_in_place(|| {
                redis::Server::start_with(&["appendfsync", "always"])
            })),
            StoreKind::Sqlite => Self::Sqlite(Sqlite::create().await),
            StoreKind::Postgres => Self::Postgres(Box::new(Installation::new(row).await)),
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Postgres(installation) => installation.address(),
            Self::Sqlite(database) => database.address(),
            Self::Memory => String::new(),
            Self::Redis(server) => server.url(),
        }
    }

    /// For the first process, which may come through a relay.
    fn first_address(&self) -> String {
        match self {
            Self::Postgres(installation) => installation.first_address(),
            _ => self.address(),
        }
    }
}
