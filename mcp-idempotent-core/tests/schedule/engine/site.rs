//! The engine of one process, as far as calls meet in it, and the calls.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use mcp_idempotent_core::record::{RecordState, Timestamp};
use shuttle::{future::block_on, thread};

use super::flight::{Entrant, Entry, Flights, Leader, WaiterLimits, Waiting, Wake};
use crate::{
    fingerprint::{Fingerprint, RecordId},
    record::Record,
};

/// How a call that led ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Record,
    Fails,
    StepsDown,
    IsDropped,
    /// It loses its claim, and still has a result later.
    Resigns,
    AsksForInput,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Ran(End),
    /// The result of this run.
    Result(i64),
    Input,
    Conflict,
    InProgress,
    Full,
    GaveUp,
    Left,
}

/// The number of a run that no other call may hear of.
pub(super) const LATE: i64 = -1;

/// The engine of one process, as far as calls meet in it.
pub(super) struct Site {
    pub(super) flights: Arc<Flights>,
    /// How the runs end, in their order. Later ones have a result.
    pub(super) ends: Vec<End>,
    pub(super) runs: AtomicUsize,
    pub(super) keys: [Key; 3],
}

/// One record.
#[derive(Default)]
pub(super) struct Key {
    pub(super) leading: AtomicUsize,
    pub(super) stored: Mutex<Option<Record>>,
}

pub(super) fn entrant(record: u8, call: u8) -> Entrant {
    let mut stored = [1; Fingerprint::STORED_LENGTH];
    stored[1] = call;
    Entrant {
        id: RecordId::from_bytes([record; 32]),
        fingerprint: Fingerprint::from_stored(&stored).unwrap(),
        round: None,
        patient: true,
    }
}

pub(super) fn record(entrant: Entrant, run: i64) -> Record {
    let state = RecordState::Completed {
        response: None,
        at: Timestamp::from_micros(run),
    };
    Record::new(entrant.fingerprint, state)
}

pub(super) fn run_of(record: &Record) -> i64 {
    match record.state {
        RecordState::Completed { at, .. } => at.as_micros(),
        _ => panic!("{record:?}"),
    }
}

impl Site {
    pub(super) fn new(ends: &[End]) -> Arc<Self> {
        Self::with_limits(ends, 8, 8)
    }

    pub(super) fn with_limits(ends: &[End], per_key: usize, per_process: usize) -> Arc<Self> {
        let limits = WaiterLimits {
            per_key,
            per_process,
        };
        Arc::new(Self {
            flights: Arc::new(Flights::new(limits)),
            ends: ends.to_vec(),
            runs: AtomicUsize::new(0),
            keys: Default::default(),
        })
    }

    pub(super) fn call(&self, entrant: Entrant) -> Seen {
        match self.flights.enter(entrant) {
            Entry::Lead(leader) => self.lead(leader, entrant),
            Entry::Wait(waiting) => self.wait(waiting, entrant),
            Entry::Conflict => Seen::Conflict,
            Entry::InProgress => Seen::InProgress,
            Entry::Full => Seen::Full,
        }
    }

    pub(super) fn wait(&self, mut waiting: Waiting, entrant: Entrant) -> Seen {
        let woken = block_on(&mut waiting.wake);
        drop(waiting);
        let woken = woken.expect("nobody forgets a call that waits");
        self.wake(woken, entrant)
    }

    pub(super) fn wake(&self, woken: Wake, entrant: Entrant) -> Seen {
        match woken {
            Wake::Lead(leader) => self.lead(leader, entrant),
            Wake::Record(record) => Seen::Result(run_of(&record)),
            Wake::InputRequired(_) => Seen::Input,
            Wake::Conflict => Seen::Conflict,
            Wake::InProgress => Seen::InProgress,
            Wake::GaveUp => Seen::GaveUp,
        }
    }

    /// Waits no longer than until it has looked once, if it looks at all.
    pub(super) fn leave(&self, mut waiting: Waiting, looks: bool) -> Seen {
        if looks {
            // What it has got it takes with it.
            drop((&mut waiting.wake).now_or_never());
        }
        drop(waiting);
        Seen::Left
    }

    /// Claims, and so finds the record if there is one, or runs.
    pub(super) fn lead(&self, mut leader: Leader, entrant: Entrant) -> Seen {
        let key = &self.keys[usize::from(entrant.id.as_bytes()[0])];
        assert_eq!(key.leading.fetch_add(1, SeqCst), 0, "two calls lead");
        let found = key.stored.lock().unwrap().clone();
        if let Some(found) = found {
            key.leading.fetch_sub(1, SeqCst);
            leader.share(&found);
            return Seen::Result(run_of(&found));
        }
        let run = self.runs.fetch_add(1, SeqCst);
        leader.running();
        assert_eq!(key.leading.fetch_sub(1, SeqCst), 1, "two calls lead");
        let end = self.ends.get(run).copied().unwrap_or(End::Record);
        let own = record(entrant, i64::try_from(run).unwrap());
        match end {
            End::Record => {
                *key.stored.lock().unwrap() = Some(own.clone());
                leader.share(&own);
            }
            End::Fails => leader.fail(),
            End::StepsDown => leader.step_down(),
            End::IsDropped => drop(leader),
            End::Resigns => {
                leader.resign();
                leader.share(&record(entrant, LATE));
            }
            End::AsksForInput => leader.input_required(&Bytes::from_static(b"?")),
        }
        Seen::Ran(end)
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    /// Every call has ended, and none is remembered.
    pub(super) fn assert_nothing_is_left(&self, tickets: &[Entrant]) {
        assert_eq!(
            self.flights.waiting(),
            0,
            "calls are counted that have ended"
        );
        for entrant in tickets {
            let entry = self.flights.enter(*entrant);
            assert!(
                matches!(entry, Entry::Lead(_)),
                "a call is remembered that has ended"
            );
        }
        assert_eq!(Arc::strong_count(&self.flights), 1);
    }

    /// What was seen of these calls is possible.
    pub(super) fn assert_possible(&self, seen: &[Seen]) {
        let mut with_result = 0;
        for seen in seen {
            match seen {
                Seen::Ran(End::Record) => with_result += 1,
                Seen::Result(run) => {
                    let end = usize::try_from(*run).ok().map(|run| self.ends.get(run));
                    assert!(
                        matches!(end, Some(None | Some(End::Record))),
                        "a call was given the result of {run}, which has none"
                    );
                }
                _ => {}
            }
        }
        assert!(
            with_result <= 1,
            "{with_result} calls had a result of their own"
        );
    }
}

/// Makes these calls at the same time.
pub(super) fn at_once(site: &Arc<Site>, tickets: &[Entrant]) -> Vec<Seen> {
    let start = |entrant: &Entrant| {
        let (site, entrant) = (Arc::clone(site), *entrant);
        thread::spawn(move || site.call(entrant))
    };
    let calls: Vec<_> = tickets.iter().map(start).collect();
    let seen = calls
        .into_iter()
        .map(|call| call.join().unwrap())
        .collect::<Vec<_>>();
    site.assert_possible(&seen);
    site.assert_nothing_is_left(tickets);
    seen
}

pub(super) fn count(all: &[Seen], seen: Seen) -> usize {
    all.iter().filter(|it| **it == seen).count()
}

pub(super) fn queued(site: &Site, entrant: Entrant) -> Waiting {
    match site.flights.enter(entrant) {
        Entry::Wait(waiting) => waiting,
        _ => panic!("it does not wait"),
    }
}

pub(super) fn leading(site: &Site, entrant: Entrant) -> Leader {
    match site.flights.enter(entrant) {
        Entry::Lead(leader) => leader,
        _ => panic!("it does not lead"),
    }
}
