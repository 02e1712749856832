//! What came of the calls.

use std::{collections::HashMap, process::ExitCode};

use sqlx::PgPool;

/// What one caller was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Done(String),
    /// Done, and not recorded.
    Unrecorded(String),
    Unknown,
}

impl Told {
    pub(crate) fn read(line: &str) -> (u64, Self) {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let call = word().parse().expect("the number of a call");
        let told = match word() {
            "done" => Self::Done(word().to_owned()),
            "unrecorded" => Self::Unrecorded(word().to_owned()),
            _ => Self::Unknown,
        };
        (call, told)
    }
}

pub(crate) async fn judge(url: &str, told: &HashMap<u64, Vec<Told>>) -> ExitCode {
    let pool = PgPool::connect(url).await.expect("the server answers");
    let rows: Vec<(i64, String)> = sqlx::query_as("SELECT call, run FROM effects")
        .fetch_all(&pool)
        .await
        .expect("the effects");
    let mut effects: HashMap<u64, Vec<String>> = HashMap::new();
    for (call, run) in rows {
        let call = u64::try_from(call).expect("the number of a call");
        effects.entry(call).or_default().push(run);
    }
    let (mut done, mut unknown, mut wrong) = (0, 0, 0);
    for (call, told) in told {
        let of_call = effects.get(call).map_or(&[][..], Vec::as_slice);
        let results = told.iter().filter_map(|told| match told {
            Told::Done(run) | Told::Unrecorded(run) => Some(run),
            Told::Unknown => None,
        });
        let results: Vec<&String> = results.collect();
        let is_right = if results.is_empty() {
            unknown += 1;
            of_call.len() <= 1
        } else {
            done += 1;
            of_call.len() == 1 && results.iter().all(|result| **result == of_call[0])
        };
        if !is_right {
            wrong += 1;
            println!("call {call}: told {told:?}, effects {of_call:?}");
        }
    }
    println!(
        "{} calls: {done} answered, {unknown} of lease mode with an unknown outcome, {wrong} wrong",
        told.len()
    );
    if wrong == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
