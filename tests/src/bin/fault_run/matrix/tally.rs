//! What was counted, and how it is kept between runs.

use std::{collections::BTreeMap, path::Path, process::ExitCode};

use serde::{Deserialize, Serialize};

use super::Tallies;
use crate::{round::Outcome, row::Row};

/// More findings of one row say nothing new.
const KEPT: usize = 8;

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) rounds: u64,
    pub(super) calls: u64,
    /// Those that happened where they claim to.
    pub(super) faults: u64,
    pub(super) met: u64,
    pub(super) missed: u64,
    pub(super) effects: u64,
    pub(super) in_doubt: u64,
    /// How often each was found.
    pub(super) found: BTreeMap<String, u64>,
    pub(super) findings: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, row: &Row, outcome: Outcome) {
        self.rounds += 1;
        self.calls += outcome.calls;
        self.faults += u64::from(outcome.landed && !row.fault.is_race());
        self.met += outcome.met;
        self.missed += outcome.missed;
        self.effects += outcome.effects;
        self.in_doubt += outcome.in_doubt;
        for finding in outcome.findings {
            self.find(finding);
        }
    }

    pub(super) fn find(&mut self, finding: String) {
        let kind = finding.split(" (").next().unwrap_or_default();
        let kind = kind.rsplit(": ").next().unwrap_or_default().to_owned();
        *self.found.entry(kind).or_default() += 1;
        if self.findings.len() < KEPT {
            self.findings.push(finding);
        }
    }

    fn merge(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.calls += other.calls;
        self.faults += other.faults;
        self.met += other.met;
        self.missed += other.missed;
        self.effects += other.effects;
        self.in_doubt += other.in_doubt;
        for (kind, count) in other.found {
            *self.found.entry(kind).or_default() += count;
        }
        self.findings.extend(other.findings);
        self.findings.truncate(KEPT);
    }

    /// A fault that never happened proves nothing.
    fn has_happened(&self, row: &Row) -> bool {
        row.fault.is_race() || self.faults > 0
    }

    pub(super) fn is_right(&self, row: &Row) -> bool {
        let found: Vec<&str> = self.found.keys().map(String::as_str).collect();
        self.has_happened(row) && row.finds_as_it_should(&found)
    }

    pub(super) fn verdict(&self, row: &Row) -> String {
        let found: Vec<_> = self.found.iter().collect();
        let found = found
            .into_iter()
            .map(|(kind, count)| format!("{kind} × {count}"));
        let found = found.collect::<Vec<_>>().join(", ");
        match (self.has_happened(row), found.is_empty(), row.is_wrong()) {
            (false, ..) => "the fault never happened".to_owned(),
            (true, true, false) => "right".to_owned(),
            (true, true, true) => "**not found**".to_owned(),
            (true, false, false) => format!("**wrong: {found}**"),
            (true, false, true) if self.is_right(row) => format!("found: {found}"),
            (true, false, true) => format!("**not what was to be found: {found}**"),
        }
    }
}

/// What all runs with one file have counted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) seed: u64,
    pub(super) tallies: Tallies,
}

impl State {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            seed,
            tallies: Tallies::new(),
        }
    }

    pub(super) fn read(path: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        Some(serde_json::from_str(&text).expect("a state that was written by this program"))
    }

    /// In one step, so that a run that is ended leaves a whole file.
    pub(super) fn write(&self, path: &Path) {
        let text = serde_json::to_string_pretty(self).expect("plain values");
        let new = path.with_extension("new");
        std::fs::write(&new, text).expect("the state can be written");
        std::fs::rename(&new, path).expect("the state can be written");
    }

    pub(super) fn add(&mut self, row: &Row, tally: Tally) {
        self.tallies
            .entry(row.to_string())
            .or_default()
            .merge(tally);
    }

    pub(super) fn rounds(&self, row: &str) -> u64 {
        self.tallies.get(row).map_or(0, |tally| tally.rounds)
    }

    pub(super) fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.tallies.values().map(of).sum()
    }

    pub(super) fn calls(&self) -> u64 {
        self.sum(|tally| tally.calls)
    }

    fn wrong(&self) -> Vec<Row> {
        let mut rows = Row::all();
        rows.retain(|row| {
            let tally = self.tallies.get(&row.to_string());
            tally.is_some_and(|tally| !tally.is_right(row))
        });
        rows
    }

    pub(super) fn summary(&self) -> String {
        let (calls, faults) = (self.calls(), self.sum(|tally| tally.faults));
        let (met, missed) = (self.sum(|tally| tally.met), self.sum(|tally| tally.missed));
        let rows = self.tallies.len();
        let wrong = self.wrong().len();
        format!(
            "{rows} rows, {calls} calls, {faults} faults that met {met} calls ({missed} had ended \
             before), {wrong} rows wrong"
        )
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        let wrong = self.wrong();
        for row in &wrong {
            println!("wrong: {row}");
        }
        if wrong.is_empty() && !self.tallies.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
