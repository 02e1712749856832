//! Joining: duplicates of a call within one process wait in memory for one attempt.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError, atomic::Ordering},
};

use bytes::Bytes;

use crate::{
    fingerprint::{Fingerprint, RecordId, RecordMap},
    record::Record,
    sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, oneshot},
};

/// Which round of a multi round-trip call this is: a digest of what the client sent back, `None`
/// for the first round. It decides which calls join each other, and is not part of identity.
pub type Round = Option<[u8; 32]>;

/// How many calls may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaiterLimits {
    pub(super) per_key: usize,
    pub(super) per_process: usize,
}

const SHARDS: usize = 16;

/// How many times in a row a waiting call claims anew after an attempt that left no record. The
/// rest are then told to retry, so that a call that keeps failing cannot make its whole queue wait
/// one attempt after another.
const SUCCESSIONS: u8 = 2;

pub(super) struct Flights {
    shards: [Mutex<RecordMap<Flight>>; SHARDS],
    limits: WaiterLimits,
    waiting: Arc<AtomicUsize>,
}

struct Flight {
    fingerprint: Fingerprint,
    round: Round,
    seen: Seen,
    failures: u8,
    queue: VecDeque<Waiter>,
}

/// What the leader has seen of its key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It has not asked the store yet.
    Nothing,
    /// Somebody holds the key's lock. That may be a call with another fingerprint, or one that only looks
    /// for the record.
    Busy,
    /// The call of this fingerprint runs, here or elsewhere.
    Running,
}

struct Waiter {
    fingerprint: Fingerprint,
    round: Round,
    patient: bool,
    wake: oneshot::Sender<Wake>,
}

/// What a caller brings to the queue.
#[derive(Clone, Copy)]
pub(super) struct Entrant {
    pub(super) id: RecordId,
    pub(super) fingerprint: Fingerprint,
    pub(super) round: Round,
    pub(super) patient: bool,
}

pub(super) enum Entry {
    Lead(Leader),
    Wait(Waiting),
    Conflict,
    InProgress,
    Full,
}

/// A place in the queue. Dropping it leaves the queue.
pub(super) struct Waiting {
    pub(super) wake: oneshot::Receiver<Wake>,
    _counted: Counted,
}

/// One of the calls that wait in this process. Dropping it makes room for another.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Counts one more, unless `most` are counted. Calls of other records may come at the same time.
    fn below(most: usize, waiting: &Arc<AtomicUsize>) -> Option<Self> {
        waiting
            .try_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                (count < most).then_some(count + 1)
            })
            .ok()?;
        Some(Self(Arc::clone(waiting)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

pub(super) enum Wake {
    /// The caller leads now, and claims anew.
    Lead(Leader),
    /// There is a record, and it decides the answer.
    Record(Record),
    /// The round asked for more input, with this answer.
    InputRequired(Bytes),
    /// A different call is running under this key.
    Conflict,
    /// The call is running, and the caller did not want to wait.
    InProgress,
    /// The calls ahead left no record too many times in a row.
    GaveUp,
}

impl Flights {
    pub(super) fn new(limits: WaiterLimits) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            limits,
            waiting: Arc::default(),
        }
    }

    pub(super) fn enter(self: &Arc<Self>, entrant: Entrant) -> Entry {
        let mut shard = self.shard(entrant.id);
        let Some(flight) = shard.get_mut(&entrant.id) else {
            shard.insert(
                entrant.id,
                Flight {
                    fingerprint: entrant.fingerprint,
                    round: entrant.round,
                    seen: Seen::Nothing,
                    failures: 0,
                    queue: VecDeque::new(),
                },
            );
            return Entry::Lead(Leader::new(self, entrant.id));
        };
        // Until the leader's own call runs, there may be a record that this entrant matches and the
        // leader does not. So only a running call is a reason to refuse another one.
        if flight.seen == Seen::Running && flight.fingerprint != entrant.fingerprint {
            return Entry::Conflict;
        }
        // The store can tell whose call it is.
        if flight.seen == Seen::Busy && flight.fingerprint != entrant.fingerprint {
            return Entry::Lead(Leader::alone(self, entrant.id));
        }
        if flight.seen != Seen::Nothing && !entrant.patient {
            return Entry::InProgress;
        }
        if flight.queue.len() >= self.limits.per_key {
            flight.queue.retain(|waiter| !waiter.wake.is_closed());
        }
        if flight.queue.len() >= self.limits.per_key {
            return Entry::Full;
        }
        let Some(counted) = Counted::below(self.limits.per_process, &self.waiting) else {
            return Entry::Full;
        };
        let (wake, woken) = oneshot::channel();
        flight.queue.push_back(Waiter {
            fingerprint: entrant.fingerprint,
            round: entrant.round,
            patient: entrant.patient,
            wake,
        });
        Entry::Wait(Waiting {
            wake: woken,
            _counted: counted,
        })
    }

    /// How many calls are waiting, over all keys.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Whether a call of this record is known to be running.
    pub(super) fn is_running(&self, id: RecordId) -> bool {
        self.shard(id)
            .get(&id)
            .is_some_and(|flight| flight.seen == Seen::Running)
    }

    fn shard(&self, id: RecordId) -> MutexGuard<'_, RecordMap<Flight>> {
        let shard = usize::from(id.as_bytes()[0]) % SHARDS;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller that claims and runs for all that wait on its key. Dropping it passes the lead on.
pub(super) struct Leader {
    flights: Arc<Flights>,
    id: RecordId,
    /// Whether it may have run the handler. If so, ending without a record counts as a failure.
    began: bool,
    /// It no longer leads, or never did. The flight of this key is gone, or has another leader.
    ended: AtomicBool,
}

impl Leader {
    fn new(flights: &Arc<Flights>, id: RecordId) -> Self {
        Self {
            flights: Arc::clone(flights),
            id,
            began: false,
            ended: AtomicBool::new(false),
        }
    }

    /// For a call that asks the store beside the key's leader. It decides for nobody else.
    fn alone(flights: &Arc<Flights>, id: RecordId) -> Self {
        let leader = Self::new(flights, id);
        leader.ended.store(true, Ordering::Release);
        leader
    }

    /// The claim is held, and the handler runs next.
    pub(super) fn running(&mut self) {
        self.began = true;
        self.found_running();
    }

    /// The call is running, here or elsewhere. From now on callers that ask for something else
    /// under this key are refused, and so are callers that do not want to wait.
    pub(super) fn found_running(&self) {
        self.found(Seen::Running);
    }

    /// Somebody holds the key, perhaps for another call. From now on callers that ask for something else
    /// under this key ask the store themselves, and those that do not want to wait are refused.
    pub(super) fn found_busy(&self) {
        self.found(Seen::Busy);
    }

    fn found(&self, seen: Seen) {
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let mut woken = Vec::new();
        if let Some(flight) = self.flights.shard(self.id).get_mut(&self.id) {
            flight.seen = seen;
            if !flight.queue.is_empty() {
                let (fingerprint, queue) = (flight.fingerprint, std::mem::take(&mut flight.queue));
                for waiter in queue {
                    if waiter.fingerprint != fingerprint {
                        let wake = match seen {
                            Seen::Running => Wake::Conflict,
                            _ => Wake::Lead(Self::alone(&self.flights, self.id)),
                        };
                        woken.push((waiter.wake, wake));
                    } else if !waiter.patient {
                        woken.push((waiter.wake, Wake::InProgress));
                    } else {
                        flight.queue.push_back(waiter);
                    }
                }
            }
        }
        send_all(woken);
    }

    /// A record decides for all waiting calls.
    pub(super) fn share(self, record: &Record) {
        if self.ends_already() {
            return;
        }
        let flight = self.flights.shard(self.id).remove(&self.id);
        if let Some(flight) = flight {
            for waiter in flight.queue {
                drop(waiter.wake.send(Wake::Record(record.clone())));
            }
        }
    }

    /// The round asked for more input. Waiting calls of the same round get the same answer. The
    /// others get their turn.
    pub(super) fn input_required(self, response: &Bytes) {
        if self.ends_already() {
            return;
        }
        let mut answered = Vec::new();
        let next = {
            let mut shard = self.flights.shard(self.id);
            if let Some(flight) = shard.get_mut(&self.id) {
                flight.failures = 0;
                let (round, queue) = (flight.round, std::mem::take(&mut flight.queue));
                for waiter in queue {
                    if waiter.round == round && waiter.fingerprint == flight.fingerprint {
                        answered.push((waiter.wake, Wake::InputRequired(response.clone())));
                    } else {
                        flight.queue.push_back(waiter);
                    }
                }
            }
            succeed(&mut shard, self.id)
        };
        send_all(answered);
        self.hand_over(next);
    }

    /// The attempt left no record. One waiting call claims anew, or all give up.
    pub(super) fn fail(self) {
        self.end_without_record(true);
    }

    /// The caller leaves without having run anything. The next one leads.
    pub(super) fn step_down(self) {
        self.end_without_record(false);
    }

    /// The caller has lost its claim but may run for long. The next one leads, and finds out the
    /// state of the key. From now on this caller decides for no other call.
    pub(super) fn resign(&self) {
        self.end_without_record(false);
    }

    /// Ends the lead. Returns whether it had already ended.
    fn ends_already(&self) -> bool {
        self.ended.swap(true, Ordering::AcqRel)
    }

    fn end_without_record(&self, failed: bool) {
        if self.ends_already() {
            return;
        }
        let (next, given_up) = {
            let mut shard = self.flights.shard(self.id);
            let exhausted = shard.get_mut(&self.id).is_some_and(|flight| {
                flight.failures += u8::from(failed);
                flight.failures > SUCCESSIONS
            });
            if exhausted {
                let flight = shard.remove(&self.id);
                (None, flight.map(|flight| flight.queue).unwrap_or_default())
            } else {
                (succeed(&mut shard, self.id), VecDeque::new())
            }
        };
        for waiter in given_up {
            drop(waiter.wake.send(Wake::GaveUp));
        }
        self.hand_over(next);
    }

    fn hand_over(&self, next: Option<oneshot::Sender<Wake>>) {
        if let Some(wake) = next {
            // If the receiver is gone, the new leader is dropped, which passes the lead on.
            drop(wake.send(Wake::Lead(Leader::new(&self.flights, self.id))));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end_without_record(self.began);
    }
}

/// Makes the first waiting call that is still there the leader. Removes the flight if there is
/// none.
fn succeed(shard: &mut RecordMap<Flight>, id: RecordId) -> Option<oneshot::Sender<Wake>> {
    let flight = shard.get_mut(&id)?;
    while let Some(waiter) = flight.queue.pop_front() {
        if !waiter.wake.is_closed() {
            flight.fingerprint = waiter.fingerprint;
            flight.round = waiter.round;
            flight.seen = Seen::Nothing;
            return Some(waiter.wake);
        }
    }
    shard.remove(&id);
    None
}

fn send_all(messages: Vec<(oneshot::Sender<Wake>, Wake)>) {
    for (wake, message) in messages {
        drop(wake.send(message));
    }
}
