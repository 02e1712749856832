//! Lease mode: processes that claim, act on another system, complete, crash, stand still and come
//! back, and an operator. The store is the model that the conformance suite holds every store
//! against.

mod promises;
mod step;

use stateright::Property;

use mcp_idempotent_core::testing::model::{
    Answer, Call, Held, Model, Operation, Resolution, Seen, Token,
};

/// A protocol, and the circumstances that it runs under.
#[derive(Debug, Clone)]
struct Leases {
    /// How many calls each process is asked for.
    calls: Vec<u8>,
    on_doubt: OnDoubt,
    /// Whether the other system takes two requests with one downstream key for one.
    honours_keys: bool,
    /// How many leases may end early: their holders stand still.
    lapses: u8,
    /// How often an operator may resolve what is open.
    resolutions: u8,
    fault: Option<Fault>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDoubt {
    Fail,
    Rerun,
}

/// One thing done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// An attempt's statements do not ask for its token.
    NoFencing,
    /// An attempt reads that it is current, and writes later.
    CheckBeforeWrite,
    /// The sequence of tokens starts again when nothing is left of a record.
    ReusedTokens,
    /// A lease that has ended frees its key.
    LapsedIsFree,
    /// An error of a handler that may have acted frees the key.
    ReleaseOnError,
    /// An attempt that did not act frees the key of one that may have.
    ReleaseAfterTakeover,
    /// Each attempt passes on a downstream key of its own.
    OriginPerAttempt,
    /// A completion whose answer was lost counts as failed.
    LostAnswerIsFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    store: Model,
    processes: Vec<Process>,
    lapses: u8,
    resolutions: u8,
    /// The downstream key of each effect on the other system, and the attempt that it answers with.
    effects: Vec<(Token, Token)>,
    /// What each attempt that acted was answered.
    results: Vec<(Token, Token)>,
    /// How often a handler acted.
    acted: u8,
    /// What callers were told, each thing once.
    told: Vec<Told>,
    /// Which process holds the key, as the store granted it.
    holder: Option<usize>,
    /// A process that did not hold the key changed the record.
    trespassed: bool,
    freed: u8,
    denied: u8,
    confirmed: bool,
}

type Process = crate::Process<At>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// The claim was sent, and its answer was lost. It may have been granted.
    ClaimLost(Option<Held>),
    /// It saw that this token left the call in doubt.
    TakingOver(Token),
    Running(Attempt),
    /// It has read that its lease is current. Only a faulty protocol gets here.
    Checked(Attempt),
    CompletionLost(Attempt),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    held: Held,
    /// An earlier attempt may have acted.
    after_doubt: bool,
    acted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Told {
    /// The result of this attempt, which ran for the caller.
    Executed(Token),
    /// The recorded result.
    Replayed(Token),
    /// The handler did not run, or did nothing.
    NotExecuted {
        rightly: bool,
    },
    InProgress,
    Unknown,
    Fenced,
    /// A completion was found although its answer had been lost.
    FoundCompleted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Claim(usize),
    /// The claim does or does not reach the store, and no answer comes back.
    LoseClaim(usize, bool),
    RecoverClaim(usize),
    TakeOver(usize),
    Act(usize),
    FailWithoutActing(usize),
    FailAfterActing(usize),
    Complete(usize),
    Write(usize),
    LoseCompletion(usize, bool),
    FindOut(usize),
    Crash(usize),
    Lapse,
    Resolve(Resolution),
}

impl Leases {
    fn new(on_doubt: OnDoubt) -> Self {
        Self {
            calls: vec![2, 2],
            on_doubt,
            honours_keys: false,
            lapses: 1,
            resolutions: 1,
            fault: None,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// A statement of an attempt. Says whether it changed the record.
    fn change(
        &self,
        state: &mut State,
        p: usize,
        token: Token,
        by: impl Fn(Token) -> Operation,
    ) -> bool {
        let token = if self.has(Fault::NoFencing) || matches!(state.processes[p].at, At::Checked(_))
        {
            state.store.token().unwrap_or(token)
        } else {
            token
        };
        let done = state.store.apply(by(token)) == Answer::Done;
        if done && state.holder != Some(p) {
            state.trespassed = true;
        }
        if self.has(Fault::ReusedTokens) && state.store.token().is_none() {
            state.store.restart_tokens();
        }
        done
    }

    fn claim(&self, state: &mut State) -> Answer {
        if self.has(Fault::LapsedIsFree)
            && let Some((_, Seen::InDoubt(_))) = state.store.look_up(false)
        {
            state.store.apply(Operation::Pass(1000));
        }
        state.store.apply(Operation::Claim(Call::This))
    }

    fn downstream_key(&self, held: &Held) -> Token {
        if self.has(Fault::OriginPerAttempt) {
            held.token
        } else {
            held.origin
        }
    }
}

impl State {
    fn tell(&mut self, p: usize, told: Told) {
        if let Err(place) = self.told.binary_search(&told) {
            self.told.insert(place, told);
        }
        self.processes[p].at = At::Idle;
    }

    /// What the attempt under this token was answered by the other system. An operator's word is 0.
    fn result(&self, token: Token) -> Token {
        let found = self.results.iter().find(|(attempt, _)| *attempt == token);
        found.map_or(0, |(_, result)| *result)
    }

    fn executed(&mut self, p: usize, attempt: Attempt) {
        let result = self.result(attempt.held.token);
        self.tell(p, Told::Executed(result));
    }

    fn act(&mut self, key: Token, token: Token, honours_keys: bool) {
        let known = self
            .effects
            .iter()
            .find(|(known, _)| honours_keys && *known == key);
        let result = match known {
            Some((_, result)) => *result,
            None => {
                self.effects.push((key, token));
                token
            }
        };
        self.results.push((token, result));
        self.acted += 1;
    }

    fn successes(&self) -> impl Iterator<Item = Token> {
        self.told.iter().filter_map(|told| match told {
            Told::Executed(result) | Told::Replayed(result) => Some(*result),
            _ => None,
        })
    }
}

impl stateright::Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            store: Model::default(),
            processes: crate::processes(&self.calls, At::Idle),
            lapses: self.lapses,
            resolutions: self.resolutions,
            effects: Vec::new(),
            results: Vec::new(),
            acted: 0,
            told: Vec::new(),
            holder: None,
            trespassed: false,
            freed: 0,
            denied: 0,
            confirmed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, process) in state.processes.iter().enumerate() {
            match process.at {
                At::Idle if process.calls == 0 => {}
                At::Idle => actions.extend([
                    Action::Claim(p),
                    Action::LoseClaim(p, false),
                    Action::LoseClaim(p, true),
                ]),
                At::ClaimLost(_) => actions.push(Action::RecoverClaim(p)),
                At::TakingOver(_) => actions.push(Action::TakeOver(p)),
                At::Running(attempt) if attempt.acted => actions.extend([
                    Action::Complete(p),
                    Action::LoseCompletion(p, false),
                    Action::LoseCompletion(p, true),
                    Action::FailAfterActing(p),
                ]),
                At::Running(_) => actions.extend([Action::Act(p), Action::FailWithoutActing(p)]),
                At::Checked(_) => actions.push(Action::Write(p)),
                At::CompletionLost(_) => actions.push(Action::FindOut(p)),
            }
            if process.at != At::Idle {
                actions.push(Action::Crash(p));
            }
        }
        let seen = state.store.look_up(false);
        if state.lapses > 0 && matches!(seen, Some((_, Seen::InProgress))) {
            actions.push(Action::Lapse);
        }
        if state.resolutions > 0 && matches!(seen, Some((_, Seen::InProgress | Seen::InDoubt(_)))) {
            actions.extend(
                [
                    Resolution::Committed,
                    Resolution::NotCommitted,
                    Resolution::Release,
                ]
                .map(Action::Resolve),
            );
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        crate::next(last, |next| self.step(next, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
