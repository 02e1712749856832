//! What the paths on Postgres cost on both sides.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::runtime::Builder;

use crate::{
    count::{instructions, plainly, references, system_calls},
    kit::cluster::Cluster,
    path::tables,
};

/// Nothing happens by itself, and a page's first change is not logged in full.
const SETTINGS: &str = "
shared_buffers = 64MB
max_wal_size = 4GB
checkpoint_timeout = 1h
autovacuum = off
fsync = off
full_page_writes = off
log_connections = on
log_line_prefix = '%p '
";

/// Enough that what a page leaves over, and a prune, are spread over many calls.
const CALLS: u32 = 5000;
const BEFORE: u32 = 100;
const COUNTED: u32 = 400;

pub(crate) fn table(paths: &[&str]) {
    let cluster = Cluster::start_with(SETTINGS);
    let url = cluster.url();
    wait(tables(&url));
    println!();
    println!(
        "| path | client: instructions | system calls | of them sends | server: instructions | bytes of WAL | dead rows |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for path in paths {
        let client = instructions(path, &url);
        let calls = system_calls(path, &url);
        let (log, dead) = written(path, &url);
        cluster.stop();
        let server = on_the_server(&cluster, path);
        cluster.start_again();
        println!(
            "| {path} | {client:.0} | {:.1} | {:.1} | {server:.0} | {log:.0} | {dead:.2} |",
            calls.all, calls.sends
        );
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(future)
}

/// Bytes of the log, and dead rows, a call.
fn written(path: &str, url: &str) -> (f64, f64) {
    let (from, dead_before) = wait(state(url));
    plainly(path, CALLS, url);
    let (to, dead) = wait(state(url));
    (
        (to - from) / f64::from(CALLS),
        (dead - dead_before) / f64::from(CALLS),
    )
}

async fn state(url: &str) -> (f64, f64) {
    const SQL: &str = "SELECT (pg_current_wal_lsn() - '0/0')::float8,
        (SELECT sum(n_dead_tup)::float8 FROM pg_stat_user_tables)";
    let mut connection = PgConnection::connect(url)
        .await
        .expect("the server answers");
    // Sessions report what they did when they end, or after some time.
    loop {
        let others: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )
        .fetch_one(&mut connection)
        .await
        .expect("the server answers");
        if others == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    sqlx::query_as(AssertSqlSafe(SQL))
        .fetch_one(&mut connection)
        .await
        .expect("the server answers")
}

/// Instructions of the server's sessions, a call: it runs under valgrind.
fn on_the_server(cluster: &Cluster, path: &str) -> f64 {
    let count = |calls| {
        cluster.start_counted();
        plainly(path, calls, &cluster.url());
        let reports = cluster.stop_counted();
        let counts = reports.iter().filter_map(|report| references(report));
        counts.sum::<f64>()
    };
    let before = count(BEFORE);
    (count(BEFORE + COUNTED) - before) / f64::from(COUNTED)
}
