//! Joining: within one process, duplicates of one call wait in memory on one attempt.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::{
    fingerprint::{Fingerprint, RecordId},
    record::Record,
};

/// Which round of a multi round-trip call this is: a digest of what the client sent back, `None`
/// for the first. It decides who joins whom, and is no part of identity.
pub type Round = Option<[u8; 32]>;

/// How many calls may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct WaiterLimits {
    pub(super) per_key: usize,
    pub(super) per_process: usize,
}

const SHARDS: usize = 16;

/// How often in a row a waiter claims anew after an attempt that left no record. The rest are then
/// told to retry, so that one failing call cannot hold a queue for a wait bound each.
const SUCCESSIONS: u8 = 2;

pub(super) struct Flights {
    shards: [Mutex<HashMap<RecordId, Flight>>; SHARDS],
    limits: WaiterLimits,
    waiting: Arc<()>,
}

struct Flight {
    fingerprint: Fingerprint,
    round: Round,
    running: bool,
    failures: u8,
    queue: VecDeque<Waiter>,
}

struct Waiter {
    fingerprint: Fingerprint,
    round: Round,
    patient: bool,
    wake: oneshot::Sender<Wake>,
}

/// What a caller brings to the queue.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
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

/// A place in the queue. Dropping it leaves.
pub(super) struct Waiting {
    pub(super) wake: oneshot::Receiver<Wake>,
    _counted: Arc<()>,
}

pub(super) enum Wake {
    /// The caller leads now, and claims anew.
    Lead(Leader),
    /// A record decides.
    Record(Record),
    /// The round asked for more input; this is what it answered.
    InputRequired(Bytes),
    /// Another call runs under this key.
    Conflict,
    /// The call runs, and the caller did not want to wait.
    InProgress,
    /// Those ahead left no record, twice in a row.
    GaveUp,
}

impl Flights {
    pub(super) fn new(limits: WaiterLimits) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            limits,
            waiting: Arc::new(()),
        }
    }

    pub(super) fn enter(self: &Arc<Self>, ticket: Ticket) -> Entry {
        let mut shard = self.shard(ticket.id);
        let Some(flight) = shard.get_mut(&ticket.id) else {
            shard.insert(
                ticket.id,
                Flight {
                    fingerprint: ticket.fingerprint,
                    round: ticket.round,
                    running: false,
                    failures: 0,
                    queue: VecDeque::new(),
                },
            );
            return Entry::Lead(Leader::new(self, ticket.id));
        };
        // Until the leader holds the claim, a record may exist that proves it the odd one out:
        // only a call that runs is a reason to refuse another.
        if flight.running {
            if flight.fingerprint != ticket.fingerprint {
                return Entry::Conflict;
            }
            if !ticket.patient {
                return Entry::InProgress;
            }
        }
        if flight.queue.len() >= self.limits.per_key {
            flight.queue.retain(|waiter| !waiter.wake.is_closed());
        }
        if flight.queue.len() >= self.limits.per_key
            || Arc::strong_count(&self.waiting) > self.limits.per_process
        {
            return Entry::Full;
        }
        let (wake, woken) = oneshot::channel();
        flight.queue.push_back(Waiter {
            fingerprint: ticket.fingerprint,
            round: ticket.round,
            patient: ticket.patient,
            wake,
        });
        Entry::Wait(Waiting {
            wake: woken,
            _counted: Arc::clone(&self.waiting),
        })
    }

    /// How many calls wait, over all keys.
    pub(super) fn waiting(&self) -> usize {
        Arc::strong_count(&self.waiting) - 1
    }

    /// Whether a call of this record is known to run.
    pub(super) fn is_running(&self, id: RecordId) -> bool {
        self.shard(id).get(&id).is_some_and(|flight| flight.running)
    }

    fn shard(&self, id: RecordId) -> MutexGuard<'_, HashMap<RecordId, Flight>> {
        let shard = usize::from(id.as_bytes()[0]) % SHARDS;
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller that claims and runs for all who wait on its key. Dropping it passes the lead on.
pub(super) struct Leader {
    flights: Arc<Flights>,
    id: RecordId,
    /// Whether it may have run the handler, so that its end without a record counts as a failure.
    began: bool,
    /// It does not lead any more: the flight of this key is gone, or somebody else's.
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

    /// The claim is held; the handler runs next.
    pub(super) fn running(&mut self) {
        self.began = true;
        self.found_running();
    }

    /// The call runs, here or elsewhere: whoever asks something else under this key is refused
    /// from here on, and so is who does not want to wait.
    pub(super) fn found_running(&self) {
        let mut refused = Vec::new();
        if let Some(flight) = self.flights.shard(self.id).get_mut(&self.id) {
            flight.running = true;
            if !flight.queue.is_empty() {
                let (fingerprint, queue) = (flight.fingerprint, std::mem::take(&mut flight.queue));
                for waiter in queue {
                    if waiter.fingerprint != fingerprint {
                        refused.push((waiter.wake, Wake::Conflict));
                    } else if !waiter.patient {
                        refused.push((waiter.wake, Wake::InProgress));
                    } else {
                        flight.queue.push_back(waiter);
                    }
                }
            }
        }
        send_all(refused);
    }

    /// A record decides for everybody who waits.
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

    /// The round asked for more input: those of the same round get the same answer, the others
    /// have their turn.
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

    /// The attempt left no record: one waiter claims anew, or all give up.
    pub(super) fn fail(self) {
        self.end_without_record(true);
    }

    /// The caller leaves without having run anything: the next one leads.
    pub(super) fn step_down(self) {
        self.end_without_record(false);
    }

    /// The caller has lost its claim, and may go on for long: the next one leads, and finds out
    /// where the key stands. Whatever comes of this caller decides for nobody else.
    pub(super) fn resign(&self) {
        self.end_without_record(false);
    }

    /// Ends the lead. Answers whether it had ended before.
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
            // A receiver that is gone by now drops the new leader, which passes the lead on.
            drop(wake.send(Wake::Lead(Leader::new(&self.flights, self.id))));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end_without_record(self.began);
    }
}

/// Makes the first waiter that is still there the leader; removes the flight where there is none.
fn succeed(shard: &mut HashMap<RecordId, Flight>, id: RecordId) -> Option<oneshot::Sender<Wake>> {
    let flight = shard.get_mut(&id)?;
    while let Some(waiter) = flight.queue.pop_front() {
        if !waiter.wake.is_closed() {
            flight.fingerprint = waiter.fingerprint;
            flight.round = waiter.round;
            flight.running = false;
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
