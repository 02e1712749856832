//! Walks through the [model](super::model) of a record and holds a store against it: every state
//! that a few operations can reach, and in each state every operation.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::Future,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

use super::{
    Harness,
    model::{
        Answer, Call, Held, IN_DOUBT, LEASE, Model, ORIGIN, Operation, RETENTION, Resolution, Seen,
        TOMBSTONE, Token,
    },
    operator::audit,
    step::{MINUTE, another_call, fresh_claim},
};
use crate::{
    policy::OnExpired,
    record::{Record, RecordState},
    store::{
        Claim, Claimed, Completion, Lease, LeaseEnd, OperatorStore, Resolution as Resolving,
        Resolved, Store as _,
    },
};

/// Claims, takeovers, what an attempt does, time and sweeps, one after the other in any order.
pub async fn every_sequence_of_operations_is_answered_as_the_model_says<H: Harness>(
    harness: Arc<H>,
) {
    walk(&harness, 4, &[], |_, _, _| async {
        unreachable!("no operation is an operator's")
    })
    .await;
}

/// The same, with an operator among them.
pub async fn every_sequence_with_an_operator_is_answered_as_the_model_says<
    H: Harness<Store: OperatorStore>,
>(
    harness: Arc<H>,
) {
    let resolutions = [
        Resolution::Committed,
        Resolution::NotCommitted,
        Resolution::Release,
    ];
    walk(&harness, 3, &resolutions, |claim, token, resolution| {
        let (harness, id) = (Arc::clone(&harness), claim.id);
        async move {
            let resolving = match resolution {
                Resolution::Committed => Resolving::Committed(completion(0)),
                Resolution::NotCommitted => Resolving::NotCommitted,
                Resolution::Release => Resolving::Release,
            };
            let mut audit = audit();
            audit.kept = minutes(ORIGIN);
            let operator = harness.elsewhere();
            match operator.resolve(id, token, &resolving, &audit).await {
                Ok(Resolved::Done(_)) => Answer::Done,
                // An expired record may have been swept.
                Ok(Resolved::Changed | Resolved::NotFound) => Answer::Refused,
                Err(error) => panic!("the store did not answer: {error:?}"),
            }
        }
    })
    .await;
}

/// The operations that lead to a state, and the leases that were granted on the way.
#[derive(Clone, Default)]
struct Path {
    model: Model,
    operations: Vec<Operation>,
    granted: Vec<Token>,
}

impl Path {
    /// The tokens of the last two leases, the latest first. Older ones are fenced like the second.
    fn held(&self) -> Vec<Token> {
        self.granted.iter().rev().take(2).copied().collect()
    }

    fn after(&self, operation: Operation) -> Self {
        let mut path = self.clone();
        path.operations.push(operation);
        if let Answer::Granted(held) = path.model.apply(operation) {
            path.granted.push(held.token);
        }
        path
    }
}

/// All that can be asked in a state.
fn operations(held: &[Token], resolutions: &[Resolution]) -> Vec<Operation> {
    let mut operations = vec![Operation::Claim(Call::Other), Operation::Sweep];
    for token in held.iter().copied() {
        operations.extend([
            Operation::TakeOver(Call::Other, token),
            Operation::TakeOver(Call::This, token),
            Operation::Renew(token),
            Operation::Complete(token),
            Operation::Release(token, false),
            Operation::Release(token, true),
            Operation::Abandon(token),
        ]);
        operations.extend(
            resolutions
                .iter()
                .map(|kind| Operation::Resolve(*kind, token)),
        );
    }
    operations.push(Operation::Claim(Call::This));
    // Each is just longer than the time that it ends, and shorter than the next one.
    operations.extend([LEASE + 1, IN_DOUBT + 1, RETENTION + 1].map(Operation::Pass));
    operations
}

async fn walk<H: Harness, F: Future<Output = Answer>>(
    harness: &Arc<H>,
    depth: usize,
    resolutions: &[Resolution],
    resolve: impl Fn(Claim, i64, Resolution) -> F,
) {
    let mut seen = HashSet::new();
    let mut waiting = VecDeque::from([Path::default()]);
    while let Some(path) = waiting.pop_front() {
        if !seen.insert(path.model.shape(&path.held())) {
            continue;
        }
        let (mut changing, mut idle) = (Vec::new(), Vec::new());
        for operation in operations(&path.held(), resolutions) {
            let next = path.after(operation);
            if next.model == path.model {
                idle.push(operation);
            } else {
                changing.push(next);
            }
        }
        // Operations that change nothing can be asked one after the other.
        Walker::new(harness, &resolve)
            .go(&path.operations, &idle)
            .await;
        for next in changing {
            if next.operations.len() < depth {
                waiting.push_back(next);
            } else {
                Walker::new(harness, &resolve)
                    .go(&next.operations, &[])
                    .await;
            }
        }
    }
}

/// One key, and what was granted for it.
struct Walker<'a, H, R> {
    harness: &'a Arc<H>,
    resolve: &'a R,
    this: Claim,
    other: Claim,
    model: Model,
    leases: HashMap<Token, Lease>,
    done: Vec<Operation>,
}

impl<'a, H, R, F> Walker<'a, H, R>
where
    H: Harness,
    R: Fn(Claim, i64, Resolution) -> F,
    F: Future<Output = Answer>,
{
    fn new(harness: &'a Arc<H>, resolve: &'a R) -> Self {
        let mut this = fresh_claim();
        this.lease = minutes(LEASE);
        this.in_doubt_retention = minutes(IN_DOUBT);
        Self {
            harness,
            resolve,
            other: another_call(&this),
            this,
            model: Model::default(),
            leases: HashMap::new(),
            done: Vec::new(),
        }
    }

    async fn go(mut self, path: &[Operation], then: &[Operation]) {
        for operation in path.iter().chain(then) {
            self.done.push(*operation);
            let answer = self.ask(*operation).await;
            let expected = self.model.apply(*operation);
            assert_eq!(answer, expected, "after {:?}", self.done);
            self.assert_reported().await;
        }
    }

    fn lease(&self, token: Token) -> &Lease {
        &self.leases[&token]
    }

    async fn ask(&mut self, operation: Operation) -> Answer {
        let store = self.harness.store();
        match operation {
            Operation::Claim(call) => match store.claim(self.claim(call)).await {
                Ok(Claimed::New(lease)) => self.granted(lease),
                Ok(Claimed::Found(record)) => {
                    let (call, seen) = self.read(&record);
                    Answer::Found(call, seen)
                }
                Ok(Claimed::InProgress) => Answer::Found(call, Seen::InProgress),
                Ok(Claimed::Conflict) => Answer::Found(not(call), Seen::InProgress),
                Err(error) => self.failed(&error),
            },
            Operation::TakeOver(call, token) => {
                let token = self.lease(token).token;
                match store.take_over(self.claim(call), token).await {
                    Ok(Some(lease)) => self.granted(lease),
                    Ok(None) => Answer::Refused,
                    Err(error) => self.failed(&error),
                }
            }
            Operation::Renew(token) => {
                self.ended(store.renew(self.lease(token), minutes(LEASE)).await)
            }
            Operation::Complete(token) => {
                // Another one each time: a store may recognise a completion that is sent again.
                let mut result = completion(token);
                result.response = Some(Bytes::from(format!("{token} {}", self.done.len())));
                self.ended(store.complete(self.lease(token), result).await)
            }
            Operation::Release(token, keeps) => {
                let keep = if keeps {
                    minutes(ORIGIN)
                } else {
                    Duration::ZERO
                };
                self.ended(store.release(self.lease(token), keep).await)
            }
            Operation::Abandon(token) => self.ended(store.abandon(self.lease(token)).await),
            Operation::Resolve(resolution, token) => {
                let token = self.lease(token).token;
                (self.resolve)(self.this.clone(), token, resolution).await
            }
            Operation::Sweep => {
                store.sweep(1000).await.expect("the store answers");
                Answer::Done
            }
            Operation::Pass(passed) => {
                let aged = self.harness.age(self.this.id, minutes(passed)).await;
                aged.expect("the record is aged");
                Answer::Done
            }
        }
    }

    const fn claim(&self, call: Call) -> &Claim {
        match call {
            Call::This => &self.this,
            Call::Other => &self.other,
        }
    }

    /// Names a new lease as the model does.
    fn granted(&mut self, lease: Lease) -> Answer {
        let latest = self.leases.values().map(|held| held.token).max();
        assert!(
            latest.is_none_or(|latest| latest < lease.token),
            "tokens grow, but not after {:?}",
            self.done
        );
        // A resolution draws a token too, which nobody is told.
        let token = self.model.drawn() + 1;
        let attempts = lease.attempts;
        let origin = lease.origin;
        self.leases.insert(token, lease);
        Answer::Granted(Held {
            token,
            origin: self.token(origin),
            attempts,
        })
    }

    /// The model's name of a token.
    fn token(&self, token: i64) -> Token {
        let held = self.leases.iter().find(|(_, lease)| lease.token == token);
        *held.expect("a token that was granted").0
    }

    fn ended(&self, end: Result<LeaseEnd, crate::store::StoreError>) -> Answer {
        match end {
            Ok(LeaseEnd::Done(_)) => Answer::Done,
            Ok(LeaseEnd::Fenced) => Answer::Refused,
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&self, error: &crate::store::StoreError) -> ! {
        panic!("the store did not answer after {:?}: {error:?}", self.done)
    }

    fn read(&self, record: &Record) -> (Call, Seen) {
        let call = if record.fingerprint == self.this.fingerprint {
            Call::This
        } else {
            Call::Other
        };
        let seen = match &record.state {
            RecordState::InProgress { .. } => Seen::InProgress,
            RecordState::InDoubt { token, .. } => Seen::InDoubt(self.token(*token)),
            RecordState::Completed { response, .. } => {
                let text = response
                    .as_deref()
                    .expect("a result that was not too large");
                let text = std::str::from_utf8(text).expect("the result's own bytes");
                let token = text.split(' ').next().and_then(|token| token.parse().ok());
                Seen::Completed(token.expect("the result's own bytes"))
            }
            RecordState::Expired => Seen::Expired,
        };
        (call, seen)
    }

    /// Everybody sees the record as the model does.
    async fn assert_reported(&self) {
        let mut refusing = self.this.clone();
        refusing.on_expired = OnExpired::Refuse;
        for (store, claim) in [
            (self.harness.elsewhere(), &self.this),
            (self.harness.store(), &refusing),
        ] {
            let record = store.look_up(claim).await.expect("the store answers");
            let reported = record.map(|record| self.read(&record));
            let refuses = claim.on_expired == OnExpired::Refuse;
            let expected = self.model.look_up(refuses);
            assert_eq!(reported, expected, "reported after {:?}", self.done);
        }
    }
}

const fn not(call: Call) -> Call {
    match call {
        Call::This => Call::Other,
        Call::Other => Call::This,
    }
}

/// The result names the token, and so whose it is.
fn completion(token: Token) -> Completion {
    let mut completion = Completion::new(Some(Bytes::from(token.to_string())), minutes(RETENTION));
    completion.tombstone = minutes(TOMBSTONE);
    completion
}

fn minutes(count: i64) -> Duration {
    MINUTE * u32::try_from(count).expect("a time that passes")
}
