//! Transaction mode: processes whose calls hold a lock, look for a record, run, and commit effect
//! and record together, over connections that can be lost at each step.
//!
//! Not in this model: a handler that ends its own transaction. Its promise is another one.

mod promises;
mod step;

use stateright::Property;

/// A protocol, and the circumstances that it runs under.
#[derive(Debug, Clone)]
struct Transactions {
    /// How many calls each process is asked for.
    calls: Vec<u8>,
    faults: Vec<Fault>,
}

/// One thing done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// No lock is taken.
    NoLock,
    /// The record is looked for before the lock is held.
    LookBeforeLock,
    /// The finishing statement overwrites a record that is there.
    Upsert,
    /// The record is written in a transaction of its own, after the effect's.
    RecordAfterCommit,
    /// After a lost commit, the record is looked for without the lock.
    RecoverWithoutLock,
    /// After a lost commit, the record is looked for before the lock is held.
    RecoverBeforeLock,
    /// An error after the commit was sent counts as the database's word.
    BelieveAnyError,
}

/// Which transaction it is, in the order in which they began.
type Number = u8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    processes: Vec<Process>,
    begun: Number,
    /// The transaction whose session holds the key's lock.
    lock: Option<Number>,
    /// Sessions that their process has left: the server has not noticed, or a commit is on its way.
    left: Vec<Left>,
    effects: Vec<Number>,
    record: Option<Number>,
    told: Vec<Told>,
    /// A handler began although there was a record.
    ran_in_vain: bool,
}

type Process = crate::Process<At>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// It has looked before it has the lock. Only a faulty protocol gets here.
    Looked(Option<Number>),
    Begun(Number),
    Running(Number),
    Ran(Number),
    /// The effect is committed, and the record is not. Only a faulty protocol gets here.
    Unrecorded(Number),
    /// No answer to its commit.
    Lost(Number),
    /// It has looked what became of its commit, and waits for the lock. Only a faulty protocol gets
    /// here.
    LookedAfterLoss(Number, Option<Number>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Left {
    number: Number,
    commits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Told {
    /// The result of this transaction, which the server confirmed.
    Executed(Number),
    /// The result of this transaction, which was found after its answer was lost.
    Found(Number),
    Replayed(Number),
    /// This transaction is not committed, and never will be.
    NotCommitted(Number),
    InProgress,
    Unknown,
}

/// What becomes of a commit that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Sent {
    Confirmed,
    DoneAndUnheard,
    /// The server has it later.
    Delayed,
    Lost,
    /// Somebody between them answers with an error, and the server has it later.
    DelayedWithError,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Action {
    Begin(usize),
    Look(usize),
    Run(usize),
    RollBack(usize),
    Commit(usize, Sent),
    Record(usize),
    Recover(usize),
    GiveUp(usize),
    Crash(usize),
    /// The server does what the session was last told, and ends it.
    End(Left),
}

impl Transactions {
    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// The server commits, unless another record is there.
    fn commit(&self, state: &mut State, number: Number) -> bool {
        let overwrites = self.has(Fault::Upsert) || self.has(Fault::RecordAfterCommit);
        let done = overwrites || state.record.is_none();
        if done {
            state.effects.push(number);
            if !self.has(Fault::RecordAfterCommit) {
                state.record = Some(number);
            }
        }
        state.unlock(number);
        done
    }
}

impl State {
    fn tell(&mut self, p: usize, told: Told) {
        if let Err(place) = self.told.binary_search(&told) {
            self.told.insert(place, told);
        }
        self.processes[p].at = At::Idle;
    }

    fn unlock(&mut self, number: Number) {
        if self.lock == Some(number) {
            self.lock = None;
        }
    }

    fn leave(&mut self, number: Number, commits: bool) {
        self.left.push(Left { number, commits });
        self.left.sort_unstable();
    }

    fn begin(&mut self, p: usize) -> Number {
        self.begun += 1;
        self.processes[p].at = At::Begun(self.begun);
        self.begun
    }

    fn tell_what_was_found(&mut self, p: usize, number: Number, found: Option<Number>) {
        let told = match found {
            Some(record) if record == number => Told::Found(record),
            Some(record) => Told::Replayed(record),
            None => Told::NotCommitted(number),
        };
        self.tell(p, told);
    }

    fn successes(&self) -> impl Iterator<Item = Number> {
        self.told.iter().filter_map(|told| match told {
            Told::Executed(result) | Told::Found(result) | Told::Replayed(result) => Some(*result),
            _ => None,
        })
    }
}

impl stateright::Model for Transactions {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            processes: crate::processes(&self.calls, At::Idle),
            begun: 0,
            lock: None,
            left: Vec::new(),
            effects: Vec::new(),
            record: None,
            told: Vec::new(),
            ran_in_vain: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, process) in state.processes.iter().enumerate() {
            match process.at {
                At::Idle if process.calls == 0 => {}
                At::Idle if self.has(Fault::LookBeforeLock) => actions.push(Action::Look(p)),
                At::Idle | At::Looked(_) => actions.push(Action::Begin(p)),
                At::Begun(_) => actions.push(Action::Look(p)),
                At::Running(_) => actions.extend([Action::Run(p), Action::RollBack(p)]),
                At::Ran(_) => {
                    actions.push(Action::RollBack(p));
                    let sent = [
                        Sent::Confirmed,
                        Sent::DoneAndUnheard,
                        Sent::Delayed,
                        Sent::Lost,
                        Sent::DelayedWithError,
                    ];
                    actions.extend(sent.map(|sent| Action::Commit(p, sent)));
                }
                At::Unrecorded(_) => actions.push(Action::Record(p)),
                At::Lost(_) | At::LookedAfterLoss(..) => {
                    actions.extend([Action::Recover(p), Action::GiveUp(p)]);
                }
            }
            if process.at != At::Idle {
                actions.push(Action::Crash(p));
            }
        }
        actions.extend(state.left.iter().copied().map(Action::End));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        crate::next(last, |next| self.step(next, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
