//! The Postgres of a row: its database, and what is around it.

use std::time::{Duration, Instant};

use mcp_idempotent_tests::{
    database::{Database as _, Postgres, postgres_options},
    kit::{
        cluster::Cluster,
        disk::{Disk, Kept},
        pooler::{PoolMode, Pooler},
        relay::Relay,
    },
};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::{task::block_in_place, time::sleep};

use crate::{
    row::{Fault, Flushes, Full, Mode, Row, Standby},
    server::{LARGE_TABLE, planted},
};

/// Before each flush, in seconds: the longest that the server allows.
const FLUSH: f64 = 0.1;
/// What a full disk does is written in these words, by the kernel.
const NO_ROOM: &str = "No space left on device";

pub(crate) struct Installation {
    pub(crate) database: Postgres,
    /// In front of it, for the first process, or for both where another server is to take over.
    pub(crate) relay: Option<Relay>,
    /// In front of it, for the first process.
    pub(crate) pooler: Option<Pooler>,
    standby: Option<Cluster>,
    /// Of its own.
    cluster: Option<Cluster>,
    /// Where its cluster is.
    disk: Option<Disk>,
    /// What was in the file of its disk before the calls, and how often something had been flushed into it.
    flushed: Option<(Kept, u64)>,
    /// A commit was seen to take at least as long as a flush should.
    is_slow: bool,
}

/// Small, and with durability.
fn settings(fault: Fault) -> String {
    let fsync = match fault {
        Fault::LosePower(Flushes::None) => "off",
        _ => "on",
    };
    let delay = match fault {
        // It is slept through with the log locked, as a flush is waited for.
        Fault::SlowFlush => "commit_delay = 100000\ncommit_siblings = 0\n",
        _ => "",
    };
    format!(
        "max_connections = 60\nshared_buffers = 16MB\nautovacuum = off\nmax_wal_size = 48MB\n\
         min_wal_size = 32MB\nfsync = {fsync}\n{delay}"
    )
}

impl Installation {
    pub(crate) async fn new(row: &Row) -> Self {
        let fault = row.fault;
        let (disk, cluster) = block_in_place(|| machine(fault));
        let of_cluster = cluster.as_ref().map(Cluster::options);
        let is_before = fault.is_at_the_database() || matches!(fault, Fault::FailOver(_));
        let relay = is_before.then(|| match &of_cluster {
            Some(options) => Relay::start(options),
            None => Relay::start(&postgres_options()),
        });
        let database = match (&of_cluster, &relay) {
            // So that what is counted is counted where the calls are.
            (Some(options), Some(relay)) => {
                let url = relay.options(options.clone()).to_url_lossy();
                Postgres::create_in(url.as_str()).await
            }
            (Some(options), None) => Postgres::create_in(options.to_url_lossy().as_str()).await,
            (None, _) => Postgres::create().await,
        };
        if matches!(row.mode, Mode::Planted(_)) {
            database.execute(planted::TABLE).await;
        }
        if matches!(fault, Fault::Fill(_)) {
            database.execute(LARGE_TABLE).await;
        }
        let pooler = (fault == Fault::KillPooler).then(|| {
            let (mode, schema) = (PoolMode::Transaction, database.schema());
            Pooler::start_in_schema(&postgres_options(), mode, 12, schema)
        });
        Self {
            database,
            relay,
            pooler,
            standby: None,
            cluster,
            disk,
            flushed: None,
            is_slow: false,
        }
    }

    pub(crate) fn address(&self) -> String {
        self.database.address()
    }

    /// For the first process, which may come through something.
    pub(crate) fn first_address(&self) -> String {
        let options = match (&self.relay, &self.pooler, &self.cluster) {
            (Some(relay), _, None) => relay.options(postgres_options()),
            (_, Some(pooler), _) => pooler.options(postgres_options()),
            _ => return self.address(),
        };
        format!("{} {}", self.database.schema(), options.to_url_lossy())
    }

    pub(crate) const fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("this row has a cluster")
    }

    pub(crate) const fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("this row has a disk")
    }

    /// Before calls are made.
    pub(crate) async fn prepare(&mut self, fault: Fault) {
        match fault {
            Fault::FailOver(standby) => self.add_standby(standby).await,
            Fault::LosePower(_) => {
                self.database.execute("CHECKPOINT").await;
                let disk = self.disk();
                let flushed = block_in_place(|| {
                    disk.flush();
                    (disk.copy(), disk.flushes())
                });
                self.flushed = Some(flushed);
            }
            // Alone: a flush that others wait for serves all.
            Fault::SlowFlush => self.is_slow = self.time_of_a_commit().await >= FLUSH,
            _ => {}
        }
    }

    async fn add_standby(&mut self, standby: Standby) {
        let primary = self.cluster();
        let new = block_in_place(|| primary.standby());
        let at_standby = new.options();
        self.standby = Some(new);
        self.until("SELECT count(*) > 0 FROM pg_stat_replication")
            .await;
        match standby {
            Standby::Synchronous => {
                for sql in [
                    "ALTER SYSTEM SET synchronous_standby_names = '*'",
                    "SELECT pg_reload_conf()",
                ] {
                    self.database.execute(sql).await;
                }
                self.until("SELECT bool_and(sync_state = 'sync') FROM pg_stat_replication")
                    .await;
            }
            Standby::Asynchronous => {
                self.until(
                    "SELECT bool_or(replay_lsn >= pg_current_wal_flush_lsn()) FROM pg_stat_replication",
                )
                .await;
                // It misses what comes from now on.
                for sql in [
                    "ALTER SYSTEM SET primary_conninfo = ''",
                    "SELECT pg_reload_conf()",
                ] {
                    let mut connection = at_standby.connect().await.expect("it takes questions");
                    let done = sqlx::raw_sql(sql).execute(&mut connection).await;
                    done.expect("we are its superuser");
                }
                self.until("SELECT count(*) = 0 FROM pg_stat_replication")
                    .await;
            }
        }
    }

    /// Says whether another timeline has begun, on a primary.
    pub(crate) async fn fail_over(&mut self) -> bool {
        const TIMELINE: &str =
            "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint";
        let before = self.database.integer(TIMELINE).await;
        let standby = self.standby.take().expect("it was prepared");
        let relay = self.relay.as_ref().expect("this row has a relay");
        block_in_place(|| {
            self.cluster().stop_immediately();
            standby.promote();
        });
        relay.lead_to(&standby.options());
        self.cluster = Some(standby);
        self.until("SELECT NOT pg_is_in_recovery()").await;
        self.database.integer(TIMELINE).await > before
    }

    /// Says whether everything stood still, was gone, and came back as after a crash.
    pub(crate) fn lose_power(&mut self) -> bool {
        const CRASHED: &str = "not properly shut down";
        let (earlier, flushes) = self.flushed.take().expect("it was prepared");
        let (cluster, disk) = (self.cluster(), self.disk());
        let crashes = || cluster.log().matches(CRASHED).count();
        let before = crashes();
        let stood_still = cluster.freeze();
        // What nobody has had flushed may be lost, though the kernel may have written some of it: where nothing
        // was flushed since, all of it is.
        let copy = match disk.flushes() == flushes {
            true => earlier,
            false => disk.copy(),
        };
        let gone = cluster.kill();
        disk.go_back_to(copy);
        cluster.start_after_crash();
        stood_still && gone && crashes() > before
    }

    /// Until a new log file, or another that the server cannot do without, finds no room. Says whether the
    /// server died of that.
    pub(crate) async fn fill_for_log(&self) -> bool {
        let died = |line: &&str| line.contains("PANIC:") && line.contains(NO_ROOM);
        let panics = || self.cluster().log().lines().filter(died).count();
        let before = panics();
        self.disk().fill();
        for _ in 0..20 {
            // It writes into the log alone.
            self.try_execute("SELECT pg_logical_emit_message(true, 'fault', 'x')")
                .await;
            self.try_execute("SELECT pg_switch_wal()").await;
            if panics() > before {
                break;
            }
        }
        let end = Instant::now() + Duration::from_secs(10);
        while panics() == before && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
        panics() > before
    }

    /// Makes room, and starts the server if it has given up.
    pub(crate) async fn make_room(&self) {
        self.disk().make_room();
        let end = Instant::now() + Duration::from_secs(30);
        while !self
            .try_execute("CREATE TABLE scrap (); DROP TABLE scrap")
            .await
        {
            assert!(Instant::now() < end, "the server does not come back");
            block_in_place(|| self.cluster().start_unless_running());
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// How often the server has written that there was no room.
    pub(crate) fn refusals(&self) -> usize {
        self.cluster().log().matches(NO_ROOM).count()
    }

    /// How many sessions wait for the disk to take their part of the log.
    pub(crate) async fn waiting_for_log(&self) -> i64 {
        const WAITING: &str =
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('WALWrite', 'WALSync')";
        self.database.integer(WAITING).await
    }

    pub(crate) const fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// In seconds.
    async fn time_of_a_commit(&self) -> f64 {
        let begun = Instant::now();
        self.database.execute("CREATE TABLE scrap ()").await;
        let took = begun.elapsed();
        self.database.execute("DROP TABLE scrap").await;
        took.as_secs_f64()
    }

    async fn try_execute(&self, sql: &str) -> bool {
        let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(self.database.outside());
        let done = tokio::time::timeout(Duration::from_secs(5), done).await;
        matches!(done, Ok(Ok(_)))
    }

    /// Asks until it is so.
    async fn until(&self, sql: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let asked = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(self.database.outside());
            if let Ok(Some(true)) = asked.await {
                return;
            }
            assert!(Instant::now() < end, "{sql}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A disk and a server of its own, where the fault needs them.
fn machine(fault: Fault) -> (Option<Disk>, Option<Cluster>) {
    let disk = match fault {
        Fault::Fill(Full::Effect | Full::Record | Full::Log) => Some(Disk::small(160)),
        Fault::LosePower(_) | Fault::StallDisk => Some(Disk::in_a_file(400)),
        _ => None,
    };
    let cluster = match (&disk, fault) {
        (Some(disk), _) => Some(Cluster::start_in(&disk.path(), &settings(fault))),
        (None, Fault::SlowFlush) => Some(Cluster::start_with(&settings(fault))),
        (None, Fault::StopCluster | Fault::FailOver(_)) => Some(Cluster::start()),
        _ => None,
    };
    (disk, cluster)
}
