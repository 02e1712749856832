//! What callers saw of a lease, against the model of a record that the conformance suite holds every store
//! against. What no order of its transitions explains is impossible, and so it is a finding: the model and
//! the code cannot drift apart.

use std::{
    collections::{HashSet, VecDeque},
    sync::LazyLock,
};

use mcp_idempotent_tower::testing::model::{
    Answer, Call, IN_DOUBT, LEASE, Model, Operation, Seen, Token,
};

use super::Evidence;
use crate::caller::Told;

/// More of them explain nothing more: two callers who lose their claims, and an attempt.
const CLAIMS: Token = 3;
const LAPSES: u8 = 2;

/// What callers were told, at some time before or after everything had ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct Heard {
    executed: bool,
    replayed: bool,
    unrecorded: bool,
    in_doubt: bool,
}

/// What is seen of a call from outside.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Observation {
    runs: usize,
    early_runs: usize,
    early: Heard,
    late: Heard,
}

impl Observation {
    pub(super) fn of(evidence: &Evidence<'_>) -> Self {
        Self {
            runs: evidence.runs,
            early_runs: evidence.early_runs,
            early: Heard::of(evidence.early),
            late: Heard::of(evidence.late),
        }
    }

    /// Whether the model explains it, where answers to claims may be lost, or may not.
    pub(super) fn is_possible(self, loses_claims: bool) -> bool {
        static WITH: LazyLock<HashSet<Observation>> = LazyLock::new(|| search(true));
        static WITHOUT: LazyLock<HashSet<Observation>> = LazyLock::new(|| search(false));
        if loses_claims { &WITH } else { &WITHOUT }.contains(&self)
    }
}

impl Heard {
    fn of(callers: &[Vec<Told>]) -> Self {
        let told = |is: fn(&Told) -> bool| callers.iter().flatten().any(is);
        Self {
            executed: told(|told| {
                matches!(
                    told,
                    Told::Done {
                        is_replay: false,
                        ..
                    }
                )
            }),
            replayed: told(|told| {
                matches!(
                    told,
                    Told::Done {
                        is_replay: true,
                        ..
                    }
                )
            }),
            unrecorded: told(|told| matches!(told, Told::Unrecorded(_))),
            in_doubt: told(|told| *told == Told::InDoubt),
        }
    }
}

/// A record, who works under it, and what has been seen.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    record: Model,
    /// The attempt whose handler has begun.
    attempt: Option<Token>,
    /// It is completed, and those who wait for it have not been told yet.
    answers: bool,
    /// A claim whose answer was lost. No handler runs under it. Where its process lives on, it is given
    /// back.
    lost: Option<Token>,
    gives_back: bool,
    lapses: u8,
    is_late: bool,
    seen: Observation,
}

impl State {
    fn heard(&mut self) -> &mut Heard {
        if self.is_late {
            &mut self.seen.late
        } else {
            &mut self.seen.early
        }
    }

    /// Each state that may follow.
    fn next(self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self) -> bool| {
            let mut changed = self;
            if change(&mut changed) {
                next.push(changed);
            }
        };
        let found = self.record.look_up(false).map(|(_, seen)| seen);
        add(&|it| it.claim().map(|token| it.attempt = Some(token)).is_some());
        add(&|it| it.claim().map(|token| it.lost = Some(token)).is_some());
        add(&|it| it.complete());
        add(&|it| {
            // The result cannot be recorded, and its caller gets it all the same.
            let ends = it.attempt.take().is_some();
            it.heard().unrecorded |= ends;
            ends
        });
        add(&|it| {
            let token = it.attempt.take();
            token.is_some_and(|token| it.record.apply(Operation::Abandon(token)) == Answer::Done)
        });
        // Its process is gone.
        add(&|it| it.attempt.take().is_some());
        add(&|it| {
            it.lapses += 1;
            it.record.apply(Operation::Pass(LEASE + 1));
            found == Some(Seen::InProgress) && it.lapses <= LAPSES
        });
        add(&|it| it.give_back(found));
        add(&|it| {
            it.heard().executed |= it.answers;
            it.answers
        });
        add(&|it| {
            // It is recorded, and its process does not know.
            it.heard().unrecorded |= it.answers;
            it.answers
        });
        let is_completed = matches!(found, Some(Seen::Completed(_)));
        let is_in_doubt = matches!(found, Some(Seen::InDoubt(_)));
        add(&|it| {
            it.heard().replayed |= is_completed;
            is_completed
        });
        add(&|it| {
            it.heard().in_doubt |= is_in_doubt;
            is_in_doubt
        });
        add(&|it| {
            // Everybody has been answered.
            it.answers = false;
            it.is_late = true;
            it.attempt.is_none() && !self.is_late
        });
        next
    }

    fn claim(&mut self) -> Option<Token> {
        if self.attempt.is_some() || self.record.drawn() >= CLAIMS {
            return None;
        }
        match self.record.apply(Operation::Claim(Call::This)) {
            Answer::Granted(held) => Some(held.token),
            _ => None,
        }
    }

    /// The handler has acted.
    fn complete(&mut self) -> bool {
        let Some(token) = self.attempt.take() else {
            return false;
        };
        self.answers = self.record.apply(Operation::Complete(token)) == Answer::Done;
        self.answers
    }

    /// A claim that was lost is found, also after its lease has ended: nothing ran under it.
    fn give_back(&mut self, found: Option<Seen>) -> bool {
        let is_open = matches!(found, Some(Seen::InProgress | Seen::InDoubt(_)));
        let is_its = self.lost.is_some() && self.record.token() == self.lost;
        self.lost = None;
        self.record.apply(Operation::Pass(LEASE + IN_DOUBT + 1));
        self.gives_back && is_open && is_its
    }
}

/// All that can be seen when everybody has been answered.
fn search(gives_back: bool) -> HashSet<Observation> {
    let first = State {
        gives_back,
        ..State::default()
    };
    let mut known = HashSet::from([first]);
    let mut open = VecDeque::from([first]);
    while let Some(state) = open.pop_front() {
        for mut next in state.next() {
            let begins = usize::from(next.attempt.is_some() && state.attempt.is_none());
            next.seen.runs += begins;
            next.seen.early_runs += if next.is_late { 0 } else { begins };
            if known.insert(next) {
                open.push_back(next);
            }
        }
    }
    let late = known.into_iter().filter(|state| state.is_late);
    late.map(|state| state.seen).collect()
}
