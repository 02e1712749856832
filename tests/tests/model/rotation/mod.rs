//! Transaction mode while a secret is replaced: processes of the previous version, which know a call
//! under one id, beside those that know both ids. The latter hold a lease under the previous id, the
//! guard, which is completed in one step with the record of the new id.
//!
//! The record of the previous id is the model that the conformance suite holds every store against.

mod promises;
mod step;

use mcp_idempotent_core::testing::model::{Model, Seen, Token};
use stateright::Property;

/// A protocol, and the circumstances that it runs under.
#[derive(Debug, Clone)]
struct Rotation {
    /// The calls of each process of the previous version, and of each that knows both secrets.
    previous: Vec<u8>,
    both: Vec<u8>,
    /// How many guards may end early: their holders stand still.
    lapses: u8,
    /// How often an operator may free the previous id.
    releases: u8,
    fault: Option<Fault>,
}

/// One thing done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Nothing is held under the previous id.
    NoGuard,
    /// The commit does not ask whether the guard is still held.
    GuardUnchecked,
    /// The guard is completed in a transaction of its own, after the commit.
    GuardLater,
    /// A guard that ended without telling frees the previous id.
    LapsedIsFree,
}

/// Which transaction it is, in the order in which they began.
type Number = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    processes: Vec<Process>,
    begun: Number,
    /// The record of the previous id, and the transaction whose result each token recorded.
    old: Model,
    results: Vec<(Token, Number)>,
    /// The guard that has a witness: it guards a transaction.
    witnessed: Option<Token>,
    /// The record of the new id.
    new: Option<Number>,
    /// The transactions whose sessions hold the locks of the two ids.
    old_lock: Option<Number>,
    new_lock: Option<Number>,
    /// Sessions that their process has left, some of them with a commit on its way.
    left: Vec<Left>,
    lapses: u8,
    releases: u8,
    effects: Vec<Number>,
    told: Vec<Told>,
}

type Process = crate::Process<At>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// It holds this guard. Only a faulty protocol has none.
    Guarding(Option<Token>),
    /// Its guard has a witness.
    Witnessed(Option<Token>),
    Running(Attempt),
    /// The effect is committed, and the guard is not. Only a faulty protocol gets here.
    Unguarded(Attempt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Attempt {
    number: Number,
    guard: Option<Token>,
    /// By a process of the previous version.
    is_previous: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Left {
    attempt: Attempt,
    commits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Told {
    /// The result of this transaction, and whether a process of the previous version said so.
    Executed(Number, bool),
    Replayed(Number, bool),
    /// This transaction is not committed, and never will be.
    NotCommitted(Number),
    InProgress,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    /// The previous version takes the lock and looks; the next one claims its guard.
    Ask(usize),
    Witness(usize),
    Begin(usize),
    Commit(usize),
    RollBack(usize),
    CompleteGuard(usize),
    /// The process is gone. Its commit may be on its way.
    Crash(usize, bool),
    /// The server does what the session was last told, and ends it.
    End(Left),
    Lapse,
    /// An operator frees the previous id.
    Release,
}

impl Rotation {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn is_previous(&self, p: usize) -> bool {
        p < self.previous.len()
    }
}

impl State {
    fn tell(&mut self, p: usize, told: Told) {
        if let Err(place) = self.told.binary_search(&told) {
            self.told.insert(place, told);
        }
        self.processes[p].at = At::Idle;
    }

    fn unlock(&mut self, attempt: Attempt) {
        for lock in [&mut self.old_lock, &mut self.new_lock] {
            if *lock == Some(attempt.number) {
                *lock = None;
            }
        }
    }

    fn result(&self, token: Token) -> Option<Number> {
        let found = self.results.iter().find(|(by, _)| *by == token);
        found.map(|(_, number)| *number)
    }

    /// The result under the previous id.
    fn old_result(&self) -> Option<Number> {
        match self.old.look_up(false) {
            Some((_, Seen::Completed(token))) => self.result(token),
            _ => None,
        }
    }

    fn successes(&self) -> impl Iterator<Item = Number> {
        self.told.iter().filter_map(|told| match told {
            Told::Executed(number, _) | Told::Replayed(number, _) => Some(*number),
            _ => None,
        })
    }
}

impl stateright::Model for Rotation {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let calls = [&*self.previous, &*self.both].concat();
        vec![State {
            processes: crate::processes(&calls, At::Idle),
            begun: 0,
            old: Model::default(),
            results: Vec::new(),
            witnessed: None,
            new: None,
            old_lock: None,
            new_lock: None,
            left: Vec::new(),
            lapses: self.lapses,
            releases: self.releases,
            effects: Vec::new(),
            told: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, process) in state.processes.iter().enumerate() {
            match process.at {
                At::Idle if process.calls == 0 => {}
                At::Idle => actions.push(Action::Ask(p)),
                At::Guarding(_) => actions.push(Action::Witness(p)),
                At::Witnessed(_) => actions.push(Action::Begin(p)),
                At::Running(_) => actions.extend([
                    Action::Commit(p),
                    Action::RollBack(p),
                    Action::Crash(p, true),
                ]),
                At::Unguarded(_) => actions.push(Action::CompleteGuard(p)),
            }
            if process.at != At::Idle {
                actions.push(Action::Crash(p, false));
            }
        }
        actions.extend(state.left.iter().copied().map(Action::End));
        let seen = state.old.look_up(false);
        if state.lapses > 0 && matches!(seen, Some((_, Seen::InProgress))) {
            actions.push(Action::Lapse);
        }
        if state.releases > 0 && matches!(seen, Some((_, Seen::InProgress | Seen::InDoubt(_)))) {
            actions.push(Action::Release);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        crate::next(last, |next| self.step(next, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
