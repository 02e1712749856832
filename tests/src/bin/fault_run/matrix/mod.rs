//! All rows, how far each has come, and what was found.

mod table;
mod tally;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use mcp_idempotent_tests::database::Stored;
use tokio::{sync::Semaphore, task::JoinSet};

pub(crate) use self::table::write as write_table;
use self::tally::{State, Tally};
use crate::{
    judge, mounts,
    random::Random,
    round,
    row::{Mode, Row, StoreKind},
    site::Site,
};

/// How many rows are tried at once. They mostly wait.
const AT_ONCE: usize = 3;
/// How many rounds of a row share its processes and its database.
const ROUNDS: u64 = 4;

pub(crate) struct Options {
    seed: Option<u64>,
    only: String,
    /// The round to begin with.
    round: u64,
    /// An earlier build of this program, for the first process of each row.
    older: Option<PathBuf>,
}

/// Which rounds of a row to try, and how.
#[derive(Debug, Clone)]
struct Rounds {
    seed: u64,
    from: u64,
    number: u64,
    older: Option<PathBuf>,
}

impl Options {
    pub(crate) fn read(words: &[&str]) -> Self {
        let mut options = Self {
            seed: None,
            only: String::new(),
            round: 0,
            older: None,
        };
        for pair in words.chunks(2) {
            match pair {
                ["--seed", seed] => options.seed = Some(seed.parse().expect("a number")),
                ["--round", round] => options.round = round.parse().expect("a number"),
                ["--older", program] => options.older = Some(program.into()),
                ["--only", words] => options.only = (*words).to_owned(),
                other => panic!("not an option with its value: {other:?}"),
            }
        }
        options
    }

    fn rounds(&self, seed: u64, from: u64, number: u64) -> Rounds {
        Rounds {
            seed,
            from,
            number,
            older: self.older.clone(),
        }
    }

    /// Those that can be tried on this machine.
    fn rows(&self) -> Vec<Row> {
        let mut rows = self.named();
        rows.retain(|row| mounts::lack_for(row).is_none());
        rows
    }

    fn named(&self) -> Vec<Row> {
        let mut rows = Row::all();
        rows.retain(|row| row.to_string().contains(&self.only));
        rows
    }

    /// Names the rows that cannot be tried here, and why. `false`: this machine should be able to.
    fn name_those_left_out(&self) -> bool {
        let mut is_right = true;
        for row in self.named() {
            if let Some(lack) = mounts::lack_for(&row) {
                let (reason, is_wrong) = mounts::reason(&lack);
                println!("not run: {row}: {reason}");
                is_right &= !is_wrong;
            }
        }
        is_right
    }
}

fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |now| now.as_secs())
}

/// Each row once.
pub(crate) async fn short(options: &Options) -> ExitCode {
    let state = State::new(options.seed.unwrap_or_else(new_seed));
    judge::assert_finds_each_fault();
    println!("seed {}", state.seed);
    let is_complete = options.name_those_left_out();
    let begun = Instant::now();
    let mut rows = options.rows();
    if options.only.is_empty() {
        rows.retain(Row::is_in_short);
    }
    let rounds = options.rounds(state.seed, options.round, 1);
    let state = batch(state, rows, &rounds, None).await;
    println!("{} in {} s", state.summary(), begun.elapsed().as_secs());
    match is_complete {
        true => state.exit_code(),
        false => ExitCode::FAILURE,
    }
}

/// Rows again and again, until there are so many calls.
pub(crate) async fn long(calls: u64, path: &Path, options: &Options) -> ExitCode {
    let mut state = State::read(path).unwrap_or_else(|| {
        let seed = options.seed.unwrap_or_else(new_seed);
        State::new(seed)
    });
    judge::assert_finds_each_fault();
    println!("seed {}", state.seed);
    options.name_those_left_out();
    while state.calls() < calls {
        let rows = options.rows();
        // Those that are behind first: a run may have been ended in the middle.
        let done = |row: &Row| state.rounds(&row.to_string());
        let least = rows.iter().map(done).min().unwrap_or_default();
        let behind = rows.iter().copied().filter(|row| done(row) == least);
        let behind = behind.collect();
        let rounds = options.rounds(state.seed, least, ROUNDS);
        state = batch(state, behind, &rounds, Some(path)).await;
        eprintln!("{} of {calls} calls: {}", state.calls(), state.summary());
    }
    println!("{}", state.summary());
    state.exit_code()
}

/// These rounds of each of these rows.
async fn batch(mut state: State, rows: Vec<Row>, rounds: &Rounds, path: Option<&Path>) -> State {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tried = JoinSet::new();
    let all = rows.len();
    for row in rows {
        let turns = Arc::clone(&turns);
        let rounds = rounds.clone();
        tried.spawn(async move {
            let turn = turns.acquire().await;
            let begun = Instant::now();
            let tally = try_row(row, &rounds).await;
            drop(turn);
            (row, tally, begun.elapsed())
        });
    }
    let mut count = 0;
    while let Some(tried) = tried.join_next().await {
        let (row, tally, took) = tried.expect("a row does not panic");
        count += 1;
        let verdict = tally.verdict(&row);
        eprintln!(
            "{count:3}/{all} {row}: {verdict}, {:.1} s",
            took.as_secs_f64()
        );
        if !tally.is_right(&row) {
            for finding in &tally.findings {
                println!("{row}: {finding}");
            }
            println!(
                "to repeat it: fault-run short --seed {} --round {} --only '{row}'",
                rounds.seed, rounds.from
            );
        }
        state.add(&row, tally);
        if let Some(path) = path {
            state.write(path);
        }
    }
    state
}

async fn try_row(row: Row, rounds: &Rounds) -> Tally {
    let mut site = Site::new(row, rounds.older.as_deref()).await;
    let mut tally = Tally::default();
    let name = row.to_string();
    for number in rounds.from..rounds.from + rounds.number {
        let random = Random::new(rounds.seed, &name, number);
        tally.add(&row, round::run(&mut site, number, random).await);
    }
    let left = site.left_in_transaction().await;
    if left > 0 {
        tally.find(format!("{left} sessions are left in a transaction"));
    }
    if row.mode == Mode::Transaction {
        let records = site.records().await;
        let completed = records.iter().filter(|it| **it == Stored::Completed);
        let (completed, effects) = (completed.count(), site.rows().await.len());
        // A call has a record under each secret that its process knows.
        let is_one_each =
            completed == effects || row.fault.has_two_secrets() && completed > effects;
        if !is_one_each || records.len() != completed {
            tally.find(format!("{effects} effects, and the records {records:?}"));
        }
    } else if matches!(row.store, StoreKind::Postgres | StoreKind::Sqlite)
        && !row.is_wrong()
        && !row.may_leave_doubt()
    {
        let records = site.records().await;
        if records.iter().any(|it| *it != Stored::Completed) {
            tally.find(format!("unfinished records: {records:?}"));
        }
    }
    tally
}

type Tallies = BTreeMap<String, Tally>;
