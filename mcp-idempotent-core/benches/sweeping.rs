//! What calls feel of a sweep: a million expired records are removed while eight callers make first
//! calls. Slices with the sweep and without it take turns; for each, how many calls there were and
//! how long the slowest hundredth took.
//!
//! Starts a server of its own: `tests/run --with-services -- cargo bench -p mcp-idempotent-core
//! --features postgres,sqlite --bench sweeping`.

mod call;
#[allow(dead_code, reason = "shared with another benchmark, and used in part")]
#[path = "postgres/cluster.rs"]
mod cluster;
#[path = "../../tests/src/kit/mod.rs"]
mod kit;
mod paired;
#[allow(dead_code, reason = "shared with another benchmark, and used in part")]
#[path = "postgres/scene.rs"]
mod scene;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use call::{ARGUMENTS, EFFECT, expect_executed, fresh_key, in_transaction, request};
use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    Engine, Store, SweepSettings, TransactionStore,
    store::{postgres::PostgresStore, sqlite::SqliteStore},
};
use scene::Scene;
use sqlx::{AssertSqlSafe, SqlitePool};
use tokio::runtime::{Builder, Runtime};

const CALLERS: usize = 8;
const SLICE: Duration = Duration::from_secs(2);

fn main() {
    // `cargo bench -- FILTER` is for the benchmarks that have rows.
    if std::env::args()
        .skip(1)
        .any(|argument| !argument.starts_with('-'))
    {
        return;
    }
    let records = if paired::is_quick() {
        100_000
    } else {
        1_000_000
    };
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    // At its own rate, and a million at four times that.
    let gently = SweepSettings::default();
    let mut quickly = gently;
    quickly.per_second *= 4;
    for (records, settings) in [(records / 10, gently), (records, quickly)] {
        postgres(&runtime, records, settings);
        sqlite(&runtime, records, settings);
    }
}

fn postgres(runtime: &Runtime, records: u32, settings: SweepSettings) {
    let cluster = cluster::start();
    runtime.block_on(cluster::set(&cluster, &[("fsync", "on")]));
    let scene = runtime.block_on(async {
        let scene = Scene::new(cluster.over_the_socket(), "swept").await;
        scene.fill("swept", records).await;
        let expire = "UPDATE swept.records SET expires_at = expires_at - interval '30 days', \
             purge_at = purge_at - interval '30 days'";
        for sql in [expire, "VACUUM FULL ANALYZE swept.records", "CHECKPOINT"] {
            sqlx::query(AssertSqlSafe(sql))
                .execute(&scene.pool)
                .await
                .expect("we own the database");
        }
        scene
    });
    let write: Write<PostgresStore> = |connection| {
        Box::pin(async move {
            sqlx::query("INSERT INTO effects (what) VALUES ($1)")
                .bind(EFFECT.as_slice())
                .execute(connection)
                .await
                .expect("the effect");
        })
    };
    let report = runtime.block_on(measure(&scene.own, write, settings));
    report.print("Postgres over the socket, fsync on", &settings);
}

fn sqlite(runtime: &Runtime, records: u32, settings: SweepSettings) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let engine = runtime.block_on(async {
        let store = SqliteStore::open(directory.path().join("swept.db"))
            .await
            .expect("a file of ours");
        let pool: SqlitePool = store.pool().clone();
        sqlx::raw_sql("CREATE TABLE effects (what BLOB NOT NULL)")
            .execute(&pool)
            .await
            .expect("a file of ours");
        let engine = Engine::new("benchmarks", store);
        one_call(&engine, write_sqlite).await;
        fill_sqlite(&pool, records).await;
        engine
    });
    let report = runtime.block_on(measure(&engine, write_sqlite, settings));
    report.print("SQLite, WAL, synchronous = FULL", &settings);
}

fn write_sqlite(connection: &mut sqlx::SqliteConnection) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        sqlx::query("INSERT INTO effects (what) VALUES ($1)")
            .bind(EFFECT.as_slice())
            .execute(connection)
            .await
            .expect("the effect");
    })
}

/// Copies of the one record there is, a month older.
async fn fill_sqlite(pool: &SqlitePool, records: u32) {
    let columns: Vec<String> =
        sqlx::query_scalar("SELECT name FROM pragma_table_info('mcp_idempotent_record')")
            .fetch_all(pool)
            .await
            .expect("a table of ours");
    let values: Vec<String> = columns
        .iter()
        .map(|column| match column.as_str() {
            "id" => "randomblob(32)".to_owned(),
            "expires_at" | "purge_at" | "sweep_at" => {
                format!("r.{column} - 2592000000000 + n * 1000")
            }
            other => format!("r.{other}"),
        })
        .collect();
    let (columns, values) = (columns.join(", "), values.join(", "));
    let sql = format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {records}) \
         INSERT INTO mcp_idempotent_record ({columns}) SELECT {values} \
         FROM (SELECT * FROM mcp_idempotent_record WHERE tool = 'transfer' LIMIT 1) r, numbers"
    );
    sqlx::query(AssertSqlSafe(sql))
        .execute(pool)
        .await
        .expect("a table of ours");
}

type Write<S> = for<'c> fn(&'c mut <S as TransactionStore>::Connection) -> BoxFuture<'c, ()>;

async fn one_call<S: TransactionStore>(engine: &Engine<S>, write: Write<S>) {
    let request = request(engine, &fresh_key(), &ARGUMENTS);
    expect_executed(in_transaction(engine, request, write).await);
}

/// The calls of one slice.
struct Slice {
    calls: usize,
    time: Duration,
}

#[derive(Default)]
struct Side {
    slices: Vec<Slice>,
    latencies: Vec<Duration>,
}

impl Side {
    fn throughput(&self) -> Vec<f64> {
        let each = |slice: &Slice| {
            f64::from(u32::try_from(slice.calls).expect("few calls")) / slice.time.as_secs_f64()
        };
        self.slices.iter().map(each).collect()
    }

    fn percentile(&mut self, percent: usize) -> Duration {
        self.latencies.sort_unstable();
        self.latencies[(self.latencies.len() - 1) * percent / 100]
    }
}

struct Report {
    without: Side,
    with: Side,
    removed: u64,
    swept_for: Duration,
}

async fn measure<S: Store + TransactionStore>(
    engine: &Engine<S>,
    write: Write<S>,
    settings: SweepSettings,
) -> Report {
    let mut report = Report {
        without: Side::default(),
        with: Side::default(),
        removed: 0,
        swept_for: Duration::ZERO,
    };
    drop(slice(engine, write).await);
    loop {
        let (calls, latencies) = slice(engine, write).await;
        report.without.slices.push(calls);
        report.without.latencies.extend(latencies);

        let sweeping = Arc::new(AtomicBool::new(true));
        let sweep = {
            let (engine, sweeping) = (engine.clone(), Arc::clone(&sweeping));
            tokio::spawn(async move {
                let (start, mut removed) = (Instant::now(), 0);
                while sweeping.load(Ordering::Relaxed) {
                    let batch = engine.store().sweep(settings.batch).await.expect("a sweep");
                    removed += batch;
                    if batch < u64::from(settings.batch) {
                        return (removed, start.elapsed(), true);
                    }
                    // As the sweep in the background rests.
                    let due = Duration::from_secs(1) * settings.batch / settings.per_second;
                    tokio::time::sleep(due).await;
                }
                (removed, start.elapsed(), false)
            })
        };
        let (calls, latencies) = slice(engine, write).await;
        sweeping.store(false, Ordering::Relaxed);
        let (removed, time, done) = sweep.await.expect("no panic");
        report.removed += removed;
        report.swept_for += time;
        // The last slice is not all beside a sweep, but may be the only one.
        if !done || report.with.slices.is_empty() {
            report.with.slices.push(calls);
            report.with.latencies.extend(latencies);
        }
        if done {
            return report;
        }
    }
}

/// Eight callers for the length of a slice.
async fn slice<S: TransactionStore>(engine: &Engine<S>, write: Write<S>) -> (Slice, Vec<Duration>) {
    let start = Instant::now();
    let latencies = Arc::new(Mutex::new(Vec::new()));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (engine, latencies) = (engine.clone(), Arc::clone(&latencies));
            tokio::spawn(async move {
                let mut mine = Vec::new();
                while start.elapsed() < SLICE {
                    let began = Instant::now();
                    one_call(&engine, write).await;
                    mine.push(began.elapsed());
                }
                latencies.lock().expect("no panic").extend(mine);
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    let time = start.elapsed();
    let latencies = std::mem::take(&mut *latencies.lock().expect("no panic"));
    let calls = latencies.len();
    (Slice { calls, time }, latencies)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Report {
    #[expect(clippy::print_stdout, reason = "the numbers are what it is for")]
    fn print(mut self, title: &str, settings: &SweepSettings) {
        let (without, with) = (self.without.throughput(), self.with.throughput());
        let ratios: Vec<f64> = with
            .iter()
            .zip(&without)
            .map(|(with, without)| with / without)
            .collect();
        let slices = ratios.len();
        println!(
            "\n{title}: {} expired records removed in {:.0} s, in batches of {} with rests for {} a second, beside {CALLERS} callers; {slices} pairs of slices of {SLICE:?}",
            self.removed,
            self.swept_for.as_secs_f64(),
            settings.batch,
            settings.per_second,
        );
        println!("\n| | without | with the sweep | ratio |\n| --- | --- | --- | --- |");
        println!(
            "| calls a second (median of slices) | {:.0} | {:.0} | {:.3} (median of pairs) |",
            median(without),
            median(with),
            median(ratios)
        );
        for percent in [50, 99] {
            let (without, with) = (
                self.without.percentile(percent).as_secs_f64() * 1e3,
                self.with.percentile(percent).as_secs_f64() * 1e3,
            );
            println!(
                "| p{percent} of a call | {without:.2} ms | {with:.2} ms | {:.3} |",
                with / without
            );
        }
    }
}
