//! What may have come of a call, and what may not.

mod replay;
mod trial;

use std::collections::BTreeSet;

pub(crate) use self::trial::assert_finds_each_fault;
use crate::{
    caller::Told,
    row::{Mode, Row},
};

/// All that is known of one call.
pub(crate) struct Evidence<'e> {
    pub(crate) row: &'e Row,
    /// Whether its outcome may be unknown for good.
    pub(crate) may_doubt: bool,
    /// What each of its callers was told.
    pub(crate) early: &'e [Vec<Told>],
    /// What callers were told after everything had ended, one after the other.
    pub(crate) late: &'e [Vec<Told>],
    pub(crate) runs: usize,
    /// Those of them that had begun before the late callers came.
    pub(crate) early_runs: usize,
    /// Its handler was seen to run when the fault came. Of another call only the claim may have been on its
    /// way, which is given back when its process finds that it was granted.
    pub(crate) stood: bool,
    /// Which executions made its effects.
    pub(crate) effects: Vec<String>,
    /// Those outside of the database, where it has both.
    pub(crate) outside: Option<Vec<String>>,
}

impl Evidence<'_> {
    fn callers(&self) -> impl Iterator<Item = &Vec<Told>> {
        self.early.iter().chain(self.late)
    }

    fn told(&self) -> impl Iterator<Item = &Told> {
        self.callers().flatten()
    }

    /// Whether somebody was told that the outcome is unknown, for good.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.told().any(|told| *told == Told::InDoubt)
    }

    pub(crate) fn findings(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |is_wrong: bool, what: &str| {
            if is_wrong {
                let (early, late, effects) = (self.early, self.late, &self.effects);
                found.push(format!(
                    "{what} (effects {effects:?}, {} executions, told {early:?}, then {late:?})",
                    self.runs
                ));
            }
        };
        let successes: BTreeSet<&str> = self.told().filter_map(Told::success).collect();
        let is_transaction = self.row.mode == Mode::Transaction;
        let in_lease = matches!(self.row.mode, Mode::Lease | Mode::LateTransaction);

        check(self.effects.len() > 1, "repeated effect");
        let none = self.effects.is_empty();
        check(!successes.is_empty() && none, "success without an effect");
        check(successes.len() > 1, "successes differ");
        let made = |run: &&str| self.effects.iter().any(|effect| effect == run);
        let other = !successes.iter().all(made) && !none;
        check(other, "success of another execution than the effect's");
        let ends = |told: &Vec<Told>| {
            let last = told.last();
            last.is_some_and(|it| it.success().is_some() || *it == Told::InDoubt)
        };
        check(!self.callers().all(ends), "a caller without an answer");
        let conflicts = self.told().any(|told| *told == Told::Conflict);
        check(conflicts, "conflict of a call with itself");
        let doubtful = self.is_in_doubt() && !self.may_doubt;
        check(doubtful, "in doubt, where the outcome can be known");

        let is_recorded = |told: &Told| matches!(told, Told::Done { .. });
        let mut recorded = self.early.iter().flatten().any(is_recorded);
        let mut forgotten = false;
        for told in self.late.iter().flatten() {
            forgotten |= recorded && *told == Told::InDoubt;
            recorded |= is_recorded(told);
        }
        check(forgotten, "in doubt after a recorded success");
        let mut early = self.early.iter().flatten();
        let resolved = self.late.iter().flatten().any(is_recorded);
        let doubted = early.any(|told| *told == Told::InDoubt);
        let changed = self.stood && resolved && doubted;
        check(changed, "success after it was in doubt for good");
        if is_transaction || (in_lease && !self.may_doubt) {
            let replayed = |told: &Vec<Told>| {
                matches!(
                    told.last(),
                    Some(Told::Done {
                        is_replay: true,
                        ..
                    })
                )
            };
            let all = self.late.iter().all(replayed);
            check(!none && !all, "effect without a record");
            check(none && all, "record without an effect");
        }
        if in_lease {
            check(self.runs > 1, "executed more than once");
            let observed = replay::Observation::of(self);
            let possible = observed.is_possible(!self.stood);
            check(!possible, "no transitions of the model explain it");
        }
        if let Some(outside) = &self.outside {
            check(outside.len() > 1, "repeated effect outside");
            let both = outside.iter().eq(&self.effects);
            check(!successes.is_empty() && !both, "one effect of two");
        }
        found
    }
}

/// What those were told who used a key for something else, while it ran or after.
pub(crate) fn probed(
    row: &Row,
    probes: &[Told],
    rows: &[String],
    outside: &[String],
) -> Vec<String> {
    let mut found = Vec::new();
    let others = rows.iter().chain(outside);
    if others.filter(|effect| effect.contains("other/")).count() > 0 {
        found.push("a key that is in use had another effect".to_owned());
    }
    for told in probes {
        let is_right = match told {
            Told::Conflict => true,
            // It is not always known at once.
            Told::Refused(_) => row.fault.is_race(),
            _ => false,
        };
        if !is_right {
            found.push(format!("conflict unchecked (told {told:?})"));
        }
    }
    found
}
