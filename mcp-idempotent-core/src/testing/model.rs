//! One record as a model: what each operation of a [`Store`](crate::Store) answers, and what it
//! leaves behind, as tersely as possible. It follows the table in `docs/state-machine.md`, and
//! knows nothing of how a store does it.
//!
//! Two things rest on it. The conformance suite walks through its transitions and holds every store
//! against it. And the project's tests check by exhaustive search that a protocol made of these
//! operations keeps its promises. So a store, the table and the proof cannot drift apart.
//!
//! Times are whole minutes. They only pass by [`Operation::Pass`].

/// How long a claim is honoured without renewal, in minutes.
pub const LEASE: i64 = 10;
/// How long a record in doubt is kept, in minutes.
pub const IN_DOUBT: i64 = 100;
/// How long a result is kept, in minutes.
pub const RETENTION: i64 = 1000;
/// How long a tombstone is kept after that, in minutes.
pub const TOMBSTONE: i64 = 1000;
/// How long the origin of a free key is kept, in minutes.
pub const ORIGIN: i64 = 1000;

/// A fencing token: its place in the order in which the store drew them, from 1.
pub type Token = u32;

/// What was asked. Two calls with one key are equal or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "two calls are enough to differ")]
pub enum Call {
    /// The call that most operations are about.
    This,
    /// Another one under the same key.
    Other,
}

/// A lease, as a claim or a takeover hands it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a model hides nothing")]
pub struct Held {
    /// Its fencing token.
    pub token: Token,
    /// The token of the first attempt at the call.
    pub origin: Token,
    /// Which attempt since the origin this is; the first is 1.
    pub attempts: u32,
}

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a model hides nothing")]
pub enum Operation {
    /// [`Store::claim`](crate::Store::claim).
    Claim(Call),
    /// [`Store::take_over`](crate::Store::take_over) of what this token left in doubt.
    TakeOver(Call, Token),
    /// [`Store::renew`](crate::Store::renew) for one lease from now.
    Renew(Token),
    /// [`Store::complete`](crate::Store::complete). The result names the token.
    Complete(Token),
    /// [`Store::release`](crate::Store::release), which keeps the origin or does not.
    Release(Token, bool),
    /// [`Store::abandon`](crate::Store::abandon).
    Abandon(Token),
    /// [`OperatorStore::resolve`](crate::OperatorStore::resolve) of what is under this token.
    Resolve(Resolution, Token),
    /// [`Store::sweep`](crate::Store::sweep).
    Sweep,
    /// This many minutes pass.
    Pass(i64),
}

/// What an operator says about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a model hides nothing")]
pub enum Resolution {
    /// It took effect, and this is its result: 0.
    Committed,
    /// It took no effect.
    NotCommitted,
    /// A repeat is acceptable.
    Release,
}

/// What the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a model hides nothing")]
pub enum Answer {
    /// A claim or a takeover was granted.
    Granted(Held),
    /// A claim met a record that decides.
    Found(Call, Seen),
    /// Done as asked. Also the answer to anything that cannot be refused.
    Done,
    /// Nothing was changed, because the operation's condition does not (or no longer) hold.
    Refused,
}

/// How a record is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a model hides nothing")]
pub enum Seen {
    /// An attempt holds an unexpired lease.
    InProgress,
    /// Whether the attempt under this token acted is unknown.
    InDoubt(Token),
    /// There is a result: the token of the attempt that recorded it, or 0 if an operator did.
    Completed(Token),
    /// There was a result. Only reported to those who ask for it.
    Expired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Kept {
    call: Call,
    token: Token,
    /// `None` if the next attempt is a first one.
    origin: Option<Token>,
    attempts: u32,
    state: State,
}

/// The state, and for how many more minutes it counts. At zero or below, it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    /// Its lease. Once that is over, the record is in doubt, and kept for [`IN_DOUBT`].
    InProgress(i64),
    InDoubt(i64),
    /// Its result, and how long that is kept. A tombstone is kept for [`TOMBSTONE`] longer.
    Completed(Token, i64),
    Released(i64),
}

/// One record and the store's sequence of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Model {
    record: Option<Kept>,
    drawn: Token,
}

impl Model {
    /// What the store answers to this, with this record. Afterwards the model is in the store's
    /// state.
    pub fn apply(&mut self, operation: Operation) -> Answer {
        match operation {
            Operation::Claim(call) => self.claim(call),
            Operation::TakeOver(call, token) => self.take_over(call, token),
            Operation::Renew(token) => self.change(token, |_| Some(State::InProgress(LEASE))),
            Operation::Complete(token) => {
                self.change(token, |kept| Some(State::Completed(kept.token, RETENTION)))
            }
            Operation::Release(token, keeps) => {
                self.change(token, |_| keeps.then_some(State::Released(ORIGIN)))
            }
            Operation::Abandon(token) => self.change(token, |_| Some(State::InDoubt(IN_DOUBT))),
            Operation::Resolve(resolution, token) => self.resolve(resolution, token),
            Operation::Sweep => {
                self.sweep();
                Answer::Done
            }
            Operation::Pass(minutes) => {
                self.pass(minutes);
                Answer::Done
            }
        }
    }

    /// What a look-up reports. `refusing` asks for expired records too.
    #[must_use]
    pub fn look_up(&self, refusing: bool) -> Option<(Call, Seen)> {
        let kept = self.record?;
        let seen = match kept.state {
            State::InProgress(left) if left > 0 => Seen::InProgress,
            State::InProgress(left) if left + IN_DOUBT > 0 => Seen::InDoubt(kept.token),
            State::InDoubt(left) if left > 0 => Seen::InDoubt(kept.token),
            State::Completed(result, left) if left > 0 => Seen::Completed(result),
            State::Completed(_, left) if refusing && left + TOMBSTONE > 0 => Seen::Expired,
            _ => return None,
        };
        Some((kept.call, seen))
    }

    /// How many tokens have been drawn.
    #[must_use]
    pub const fn drawn(&self) -> Token {
        self.drawn
    }

    /// The token that the record is under, if there is one.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.record.map(|kept| kept.token)
    }

    /// Draws tokens from the start again, which no store may do: for faults that a proof has to
    /// find.
    pub const fn restart_tokens(&mut self) {
        self.drawn = 0;
    }

    /// The record without its numbers, as far as its future depends on it: two models with one
    /// shape answer all operations alike, if `tokens` stand for the same leases.
    #[must_use]
    pub fn shape(&self, tokens: &[Token]) -> impl std::hash::Hash + Eq + Clone + use<> {
        let place = |token: Token| tokens.iter().position(|held| *held == token);
        self.record.map(|kept| {
            let result = match kept.state {
                State::Completed(result, _) => place(result),
                _ => None,
            };
            let left = match kept.state {
                State::InProgress(left) => (0, left),
                State::InDoubt(left) => (1, left),
                State::Completed(_, left) => (2, left),
                State::Released(left) => (3, left),
            };
            let origin = kept.origin.map(place);
            (kept.call, place(kept.token), origin, result, left)
        })
    }

    fn draw(&mut self) -> Token {
        self.drawn += 1;
        self.drawn
    }

    fn claim(&mut self, call: Call) -> Answer {
        if let Some((call, seen)) = self.look_up(false) {
            return Answer::Found(call, seen);
        }
        let before = self
            .record
            .filter(|kept| matches!(kept.state, State::Released(left) if left > 0))
            .and_then(|kept| Some((kept.origin?, kept.attempts)));
        let token = self.draw();
        let (origin, attempts) = match before {
            Some((origin, attempts)) => (origin, attempts + 1),
            None => (token, 1),
        };
        self.record = Some(Kept {
            call,
            token,
            origin: Some(origin),
            attempts,
            state: State::InProgress(LEASE),
        });
        Answer::Granted(Held {
            token,
            origin,
            attempts,
        })
    }

    fn take_over(&mut self, call: Call, token: Token) -> Answer {
        if self.look_up(false) != Some((call, Seen::InDoubt(token))) {
            return Answer::Refused;
        }
        let drawn = self.draw();
        let Some(kept) = &mut self.record else {
            return Answer::Refused;
        };
        kept.token = drawn;
        kept.attempts += 1;
        kept.state = State::InProgress(LEASE);
        Answer::Granted(Held {
            token: drawn,
            origin: *kept.origin.get_or_insert(drawn),
            attempts: kept.attempts,
        })
    }

    /// What an attempt may do, as long as its lease has not ended. No state means no record.
    fn change(&mut self, token: Token, to: impl FnOnce(&Kept) -> Option<State>) -> Answer {
        match &mut self.record {
            Some(kept)
                if kept.token == token
                    && matches!(kept.state, State::InProgress(left) if left > 0) =>
            {
                match to(kept) {
                    Some(state) => kept.state = state,
                    None => self.record = None,
                }
                Answer::Done
            }
            _ => Answer::Refused,
        }
    }

    fn resolve(&mut self, resolution: Resolution, token: Token) -> Answer {
        let open = matches!(
            self.look_up(false),
            Some((_, Seen::InProgress | Seen::InDoubt(_)))
        );
        match &mut self.record {
            Some(kept) if open && kept.token == token => {
                self.drawn += 1;
                kept.token = self.drawn;
                kept.state = match resolution {
                    Resolution::Committed => State::Completed(0, RETENTION),
                    Resolution::NotCommitted | Resolution::Release => State::Released(ORIGIN),
                };
                if resolution == Resolution::NotCommitted {
                    kept.origin = None;
                }
                Answer::Done
            }
            _ => Answer::Refused,
        }
    }

    fn sweep(&mut self) {
        let kept = |state| match state {
            State::InProgress(left) => left + IN_DOUBT > 0,
            State::Completed(_, left) => left + TOMBSTONE > 0,
            State::InDoubt(left) | State::Released(left) => left > 0,
        };
        self.record = self.record.filter(|record| kept(record.state));
    }

    const fn pass(&mut self, minutes: i64) {
        if let Some(record) = &mut self.record {
            match &mut record.state {
                State::InProgress(left)
                | State::InDoubt(left)
                | State::Completed(_, left)
                | State::Released(left) => *left -= minutes,
            }
        }
    }
}
