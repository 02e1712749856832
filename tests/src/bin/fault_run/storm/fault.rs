//! What goes wrong on purpose.

use std::collections::BTreeMap;

use mcp_idempotent_tests::kit::{
    cluster::Cluster,
    relay::{Cut, Relay},
};
use sqlx::{Connection as _, PgConnection};

use super::WORKERS;

/// One of twenty ends the server, because that takes the longest.
const ROUND: [&str; 20] = [
    "kill a client",
    "end a session",
    "cut at a commit, before the server has it",
    "end a session",
    "kill a client",
    "cut at a commit, after the server had it",
    "fall silent",
    "end a session",
    "cut all connections",
    "kill a client",
    "end a session",
    "cut at a commit, on the client's side only",
    "end a session",
    "kill a client",
    "stop the server",
    "end a session",
    "cut at a commit, while the server works",
    "kill a client",
    "fall silent",
    "end a session",
];

pub(crate) struct Faults {
    /// Answers between two of them.
    every: u64,
    left: u64,
    done: BTreeMap<&'static str, u64>,
    count: usize,
}

impl Faults {
    pub(crate) fn new(every: u64, left: u64) -> Self {
        Self {
            every: every.max(1),
            left,
            done: BTreeMap::new(),
            count: 0,
        }
    }

    /// Lets something go wrong, if it is time. Returns the worker that is to be killed.
    pub(crate) async fn next(
        &mut self,
        answers: u64,
        cluster: &Cluster,
        relay: &Relay,
    ) -> Option<usize> {
        if self.left == 0 || !answers.is_multiple_of(self.every) {
            return None;
        }
        self.left -= 1;
        let fault = ROUND[self.count % ROUND.len()];
        self.count += 1;
        *self.done.entry(fault).or_default() += 1;
        // What hung on the server's side since the last fault ends now.
        relay.come_up();
        match fault {
            "kill a client" => return Some(self.count % WORKERS),
            "end a session" => end_a_session(cluster).await,
            "stop the server" => {
                cluster.stop_immediately();
                cluster.start_again();
            }
            "cut all connections" => {
                relay.cut_clients();
            }
            "fall silent" => relay.fall_silent_at(1 + self.count % 7),
            "cut at a commit, before the server has it" => {
                relay.cut_next_commit(Cut::BeforeTheServer);
            }
            "cut at a commit, after the server had it" => {
                relay.cut_next_commit(Cut::AfterTheServer);
            }
            "cut at a commit, while the server works" => {
                relay.cut_next_commit(Cut::WhileTheServerWorks);
            }
            _ => relay.cut_next_commit(Cut::OnTheClientsSideOnly),
        }
        None
    }

    pub(crate) fn print(&self) {
        for (fault, count) in &self.done {
            println!("{count:5} × {fault}");
        }
    }
}

async fn end_a_session(cluster: &Cluster) {
    let Ok(mut connection) = PgConnection::connect(&cluster.url()).await else {
        return;
    };
    let ended = sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
         ORDER BY state IN ('active', 'idle in transaction') DESC, random() LIMIT 1",
    );
    drop(ended.execute(&mut connection).await);
}
