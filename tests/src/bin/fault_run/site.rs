//! Where the calls of one row happen: a store, two server processes and their ledger.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_idempotent_tests::{
    database::{Database as _, Postgres, Sqlite, Stored, postgres_options, unique},
    kit::{cluster::Cluster, redis, relay::Relay},
    ledger::Ledger,
};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::{
    caller::{Place, at},
    link::Server,
    row::{Fault, Mode, Row, StoreKind},
    server::{Settings, planted},
};

/// For how long a server waits for its store.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// Where a lease is to end while somebody waits.
pub(crate) const SHORT_LEASE: Duration = Duration::from_secs(2);
const LONG_LEASE: Duration = Duration::from_secs(60);

pub(crate) enum Base {
    Postgres {
        database: Postgres,
        /// Of its own, to be stopped.
        cluster: Option<Cluster>,
        /// In front of it, for the first process.
        relay: Option<Relay>,
    },
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
    pub(crate) async fn new(row: Row) -> Self {
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
        };
        let names = [unique("fault"), unique("beside")];
        let first = start(&names[0], &settings, &first_address, &row).await;
        let second = if row.store == StoreKind::Memory {
            Arc::clone(&first)
        } else {
            start(&names[1], &settings, &settings.address, &row).await
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

    /// Another process in the place of the first.
    pub(crate) async fn start_again(&self) {
        let started = start(
            &self.names[0],
            &self.settings,
            &self.first_address,
            &self.row,
        );
        let started = at(&started.await);
        *self.places[0].lock().expect("no panic") = started;
    }

    pub(crate) const fn relay(&self) -> &Relay {
        match &self.base {
            Base::Postgres {
                relay: Some(relay), ..
            } => relay,
            _ => panic!("this row has a relay"),
        }
    }

    /// Terminates the sessions of the first process. Says how many.
    pub(crate) async fn end_sessions(&self) -> i64 {
        let Base::Postgres { database, .. } = &self.base else {
            return 0;
        };
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{}'",
            self.names[0]
        );
        database.integer(&sql).await
    }

    /// Stops the cluster at once, and starts it again.
    pub(crate) fn restart_cluster(&self) {
        let Base::Postgres {
            cluster: Some(cluster),
            ..
        } = &self.base
        else {
            panic!("this row has a cluster")
        };
        block_in_place(|| {
            cluster.stop_immediately();
            cluster.start_again();
        });
    }

    /// The effects in the database, or none where it is not written to.
    pub(crate) async fn rows(&self) -> Vec<String> {
        match &self.base {
            Base::Postgres { database, .. } => database.effects().await,
            Base::Sqlite(database) => database.effects().await,
            Base::Memory | Base::Redis(_) => Vec::new(),
        }
    }

    /// The records, where a database has them.
    pub(crate) async fn records(&self) -> Vec<Stored> {
        match &self.base {
            Base::Postgres { database, .. } => database.records().await,
            Base::Sqlite(database) => database.records().await,
            Base::Memory | Base::Redis(_) => Vec::new(),
        }
    }

    /// How many sessions are left in a transaction, after a while.
    pub(crate) async fn left_in_transaction(&self) -> i64 {
        let Base::Postgres { database, .. } = &self.base else {
            return 0;
        };
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('{}', '{}')
             AND state LIKE 'idle in transaction%'",
            self.names[0], self.names[1]
        );
        let mut left = 0;
        for _ in 0..100 {
            left = database.integer(&sql).await;
            if left == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        left
    }
}

async fn start(name: &str, settings: &Settings, address: &str, row: &Row) -> Place {
    let settings = Settings {
        address: address.to_owned(),
        ..settings.clone()
    };
    let server = Server::start(name, &settings, row.fault.is_at_the_callers()).await;
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
            StoreKind::Postgres => {
                let stops = row.fault == Fault::StopCluster;
                let cluster = stops.then(|| block_in_place(Cluster::start));
                let database = match &cluster {
                    Some(cluster) => Postgres::create_in(&cluster.url()).await,
                    None => Postgres::create().await,
                };
                if matches!(row.mode, Mode::Planted(_)) {
                    database.execute(planted::TABLE).await;
                }
                let at_database = row.fault.is_at_the_database();
                let relay = at_database.then(|| Relay::start(&postgres_options()));
                Self::Postgres {
                    database,
                    cluster,
                    relay,
                }
            }
        }
    }

    fn address(&self) -> String {
        match self {
            Self::Postgres { database, .. } => database.address(),
            Self::Sqlite(database) => database.address(),
            Self::Memory => String::new(),
            Self::Redis(server) => server.url(),
        }
    }

    /// For the first process, which may come through a relay.
    fn first_address(&self) -> String {
        use sqlx::ConnectOptions as _;
        match self {
            Self::Postgres {
                database,
                relay: Some(relay),
                ..
            } => {
                let options = relay.options(postgres_options());
                format!("{} {}", database.schema(), options.to_url_lossy())
            }
            _ => self.address(),
        }
    }
}
