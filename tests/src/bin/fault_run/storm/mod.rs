//! Makes many calls on Postgres while clients, sessions and the server are killed and connections are
//! cut, and counts what came of them. Every call is made by two processes at once, and each of them
//! repeats it until it is answered.
//!
//! Every fourth call is one of lease mode, whose effect
//! is written on a connection of its own. The run fails if an answered call has not exactly one effect, if
//! its two callers were told different results, or if a call whose outcome is unknown has more than one
//! effect.

mod fault;
mod judge;
mod worker;

use std::{
    collections::{HashMap, VecDeque},
    process::{ExitCode, Stdio},
};

use fault::Faults;
use judge::Told;
use mcp_idempotent_tests::kit::{cluster::Cluster, relay::Relay};
use mcp_idempotent_tower::store::postgres::PostgresStore;
use sqlx::PgPool;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
};

/// Every second one goes through the relay.
const WORKERS: usize = 4;
/// How many calls a worker has at once.
const AT_ONCE: usize = 12;

const SETTINGS: &str = "
max_connections = 200
shared_buffers = 64MB
fsync = off
";

/// What a worker said, and which incarnation of it.
#[derive(Debug)]
struct Said {
    worker: usize,
    incarnation: u32,
    line: String,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    incarnation: u32,
    /// What it was asked and has not answered.
    open: Vec<u64>,
    /// What it is still to be asked.
    waiting: VecDeque<u64>,
}

/// What the program is called with to be one of the processes.
pub(crate) const WORK: &str = "storm-worker";

pub(crate) use worker::work;

pub(crate) async fn run(calls: u64, faults: u64) -> ExitCode {
    let cluster = Cluster::start_with(SETTINGS);
    tables(&cluster.url()).await;
    let relay = Relay::start(&cluster.options());
    let through = format!("postgres://postgres@127.0.0.1:{}/postgres", relay.port());
    let urls = [cluster.url(), through];
    let (say, mut heard) = mpsc::unbounded_channel();

    let mut workers = Vec::new();
    for place in 0..WORKERS {
        let waiting = (0..calls)
            .filter(|call| {
                let first = usize::try_from(*call).expect("a small number") % WORKERS;
                place == first || place == (first + 1) % WORKERS
            })
            .collect();
        workers.push(start(&urls, place, 0, waiting, &say));
    }
    for worker in &mut workers {
        worker.ask().await;
    }

    let mut told: HashMap<u64, Vec<Told>> = HashMap::new();
    let mut faulty = Faults::new(calls * 2 / faults.max(1), faults);
    let mut answers = 0;
    while answers < calls * 2 {
        let said: Said = heard.recv().await.expect("a sender is here");
        let worker = &mut workers[said.worker];
        if worker.incarnation != said.incarnation {
            continue;
        }
        let (call, what) = Told::read(&said.line);
        worker.open.retain(|open| *open != call);
        worker.ask().await;
        told.entry(call).or_default().push(what);
        answers += 1;
        let Some(victim) = faulty.next(answers, &cluster, &relay).await else {
            continue;
        };
        let dying = &mut workers[victim];
        dying.child.kill().await.expect("our child");
        let open = std::mem::take(&mut dying.open);
        let waiting = open.into_iter().chain(dying.waiting.drain(..)).collect();
        let incarnation = dying.incarnation + 1;
        workers[victim] = start(&urls, victim, incarnation, waiting, &say);
        workers[victim].ask().await;
    }
    relay.come_up();
    for worker in &mut workers {
        worker.child.kill().await.expect("our child");
    }
    faulty.print();
    judge::judge(&cluster.url(), &told).await
}

fn start(
    urls: &[String; 2],
    place: usize,
    incarnation: u32,
    waiting: VecDeque<u64>,
    say: &mpsc::UnboundedSender<Said>,
) -> Worker {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([WORK, &urls[place % 2]])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this program starts");
    let input = child.stdin.take().expect("piped");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let say = say.clone();
    drop(tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let said = Said {
                worker: place,
                incarnation,
                line,
            };
            drop(say.send(said));
        }
    }));
    Worker {
        child,
        input,
        incarnation,
        open: Vec::new(),
        waiting,
    }
}

impl Worker {
    /// Gives it as many calls as it may have.
    async fn ask(&mut self) {
        while self.open.len() < AT_ONCE
            && let Some(call) = self.waiting.pop_front()
        {
            self.open.push(call);
            let line = format!("{call}\n");
            // Where it is dying, it will be started again with what is open.
            drop(self.input.write_all(line.as_bytes()).await);
        }
    }
}

async fn tables(url: &str) {
    let pool = PgPool::connect(url).await.expect("the server answers");
    sqlx::raw_sql("CREATE TABLE effects (call bigint NOT NULL, run text NOT NULL)")
        .execute(&pool)
        .await
        .expect("we own the database");
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.expect("we own the database");
    pool.close().await;
}
