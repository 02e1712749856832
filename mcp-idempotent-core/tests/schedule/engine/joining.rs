//! Calls that meet at one record in one process.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use mcp_idempotent_core::record::{RecordState, Timestamp};
use shuttle::{
    future::block_on,
    rand::{Rng as _, thread_rng},
    thread,
};

use super::flight::{Entrant, Entry, Flights, Leader, WaiterLimits, Waiting, Wake};
use crate::{
    fingerprint::{Fingerprint, RecordId},
    record::Record,
    schedules,
};

/// How a call that led ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
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
enum Seen {
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
const LATE: i64 = -1;

/// The engine of one process, as far as calls meet in it.
struct Site {
    flights: Arc<Flights>,
    /// How the runs end, in their order. Later ones have a result.
    ends: Vec<End>,
    runs: AtomicUsize,
    keys: [Key; 3],
}

/// One record.
#[derive(Default)]
struct Key {
    leading: AtomicUsize,
    stored: Mutex<Option<Record>>,
}

fn entrant(record: u8, call: u8) -> Entrant {
    let mut stored = [1; Fingerprint::STORED_LENGTH];
    stored[1] = call;
    Entrant {
        id: RecordId::from_bytes([record; 32]),
        fingerprint: Fingerprint::from_stored(&stored).unwrap(),
        round: None,
        patient: true,
    }
}

fn record(entrant: Entrant, run: i64) -> Record {
    let state = RecordState::Completed {
        response: None,
        at: Timestamp::from_micros(run),
    };
    Record::new(entrant.fingerprint, state)
}

fn run_of(record: &Record) -> i64 {
    match record.state {
        RecordState::Completed { at, .. } => at.as_micros(),
        _ => panic!("{record:?}"),
    }
}

impl Site {
    fn new(ends: &[End]) -> Arc<Self> {
        Self::with_limits(ends, 8, 8)
    }

    fn with_limits(ends: &[End], per_key: usize, per_process: usize) -> Arc<Self> {
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

    fn call(&self, entrant: Entrant) -> Seen {
        match self.flights.enter(entrant) {
            Entry::Lead(leader) => self.lead(leader, entrant),
            Entry::Wait(waiting) => self.wait(waiting, entrant),
            Entry::Conflict => Seen::Conflict,
            Entry::InProgress => Seen::InProgress,
            Entry::Full => Seen::Full,
        }
    }

    fn wait(&self, mut waiting: Waiting, entrant: Entrant) -> Seen {
        let woken = block_on(&mut waiting.wake);
        drop(waiting);
        let woken = woken.expect("nobody forgets a call that waits");
        self.wake(woken, entrant)
    }

    fn wake(&self, woken: Wake, entrant: Entrant) -> Seen {
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
    fn leave(&self, mut waiting: Waiting, looks: bool) -> Seen {
        if looks {
            // What it has got it takes with it.
            drop((&mut waiting.wake).now_or_never());
        }
        drop(waiting);
        Seen::Left
    }

    /// Claims, and so finds the record if there is one, or runs.
    fn lead(&self, mut leader: Leader, entrant: Entrant) -> Seen {
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

    fn runs(&self) -> usize {
        self.runs.load(SeqCst)
    }

    /// Every call has ended, and none is remembered.
    fn assert_nothing_is_left(&self, tickets: &[Entrant]) {
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
    fn assert_possible(&self, seen: &[Seen]) {
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
fn at_once(site: &Arc<Site>, tickets: &[Entrant]) -> Vec<Seen> {
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

fn count(all: &[Seen], seen: Seen) -> usize {
    all.iter().filter(|it| **it == seen).count()
}

fn queued(site: &Site, entrant: Entrant) -> Waiting {
    match site.flights.enter(entrant) {
        Entry::Wait(waiting) => waiting,
        _ => panic!("it does not wait"),
    }
}

fn leading(site: &Site, entrant: Entrant) -> Leader {
    match site.flights.enter(entrant) {
        Entry::Lead(leader) => leader,
        _ => panic!("it does not lead"),
    }
}

#[test]
fn of_duplicates_one_runs_and_the_others_get_its_result() {
    schedules::all(|| {
        let site = Site::new(&[]);
        let seen = at_once(&site, &[entrant(1, 1); 2]);
        assert_eq!(count(&seen, Seen::Ran(End::Record)), 1);
        assert_eq!(count(&seen, Seen::Result(0)), 1);
        assert_eq!(site.runs(), 1);
    });
    schedules::many(|| {
        let site = Site::new(&[]);
        let seen = at_once(&site, &[entrant(1, 1); 5]);
        assert_eq!(count(&seen, Seen::Ran(End::Record)), 1);
        assert_eq!(count(&seen, Seen::Result(0)), 4);
    });
}

#[test]
fn after_an_attempt_without_a_record_another_call_takes_over() {
    for end in [End::Fails, End::StepsDown, End::IsDropped, End::Resigns] {
        schedules::all(move || {
            let site = Site::new(&[end]);
            let seen = at_once(&site, &[entrant(1, 1); 2]);
            assert_eq!(count(&seen, Seen::Ran(end)), 1);
            assert_eq!(count(&seen, Seen::Ran(End::Record)), 1);
        });
        schedules::many(move || {
            let site = Site::new(&[end, end]);
            let seen = at_once(&site, &[entrant(1, 1); 4]);
            assert_eq!(count(&seen, Seen::Ran(end)), 2);
            assert_eq!(count(&seen, Seen::Ran(End::Record)), 1);
            assert_eq!(count(&seen, Seen::Result(2)), 1);
        });
    }
}

#[test]
fn a_call_that_leaves_while_it_is_handed_the_lead_passes_it_on() {
    for end in [End::Fails, End::IsDropped] {
        for looks in [false, true] {
            schedules::all(move || {
                let site = Site::new(&[end]);
                let call = entrant(1, 1);
                let leader = leading(&site, call);
                let (leaving, waiting) = (queued(&site, call), queued(&site, call));
                let leads = thread::spawn({
                    let site = Arc::clone(&site);
                    move || site.lead(leader, call)
                });
                let leaves = thread::spawn({
                    let site = Arc::clone(&site);
                    move || site.leave(leaving, looks)
                });
                assert_eq!(site.wait(waiting, call), Seen::Ran(End::Record));
                assert_eq!(leads.join().unwrap(), Seen::Ran(end));
                assert_eq!(leaves.join().unwrap(), Seen::Left);
                site.assert_nothing_is_left(&[call]);
            });
        }
    }
}

#[test]
fn calls_that_all_leave_leave_nothing_behind() {
    for end in [End::Record, End::Fails, End::IsDropped, End::AsksForInput] {
        schedules::all(move || {
            let site = Site::new(&[end]);
            let call = entrant(1, 1);
            let leader = leading(&site, call);
            let (first, second) = (queued(&site, call), queued(&site, call));
            let leads = thread::spawn({
                let site = Arc::clone(&site);
                move || site.lead(leader, call)
            });
            let leaves = thread::spawn({
                let site = Arc::clone(&site);
                move || site.leave(first, true)
            });
            site.leave(second, false);
            leads.join().unwrap();
            leaves.join().unwrap();
            site.assert_nothing_is_left(&[call]);
        });
    }
}

#[test]
fn a_queue_gives_up_after_three_attempts_without_a_record_and_is_forgotten() {
    schedules::many(|| {
        let site = Site::new(&[End::Fails; 5]);
        let call = entrant(1, 1);
        let leader = leading(&site, call);
        let others = [(); 4].map(|()| {
            let (site, waiting) = (Arc::clone(&site), queued(&site, call));
            thread::spawn(move || site.wait(waiting, call))
        });
        assert_eq!(site.lead(leader, call), Seen::Ran(End::Fails));
        let seen = others.map(|other| other.join().unwrap());
        assert_eq!(count(&seen, Seen::Ran(End::Fails)), 2);
        assert_eq!(count(&seen, Seen::GaveUp), 2);
        site.assert_nothing_is_left(&[call]);
    });
}

#[test]
fn input_is_asked_of_the_calls_of_one_round_and_the_others_have_their_turn() {
    schedules::many(|| {
        let site = Site::new(&[End::AsksForInput]);
        let (first, mut second) = (entrant(1, 1), entrant(1, 1));
        second.round = Some([2; 32]);
        let leader = leading(&site, first);
        let others: Vec<_> = [first, second]
            .into_iter()
            .map(|call| {
                let (site, waiting) = (Arc::clone(&site), queued(&site, call));
                thread::spawn(move || site.wait(waiting, call))
            })
            .collect();
        assert_eq!(site.lead(leader, first), Seen::Ran(End::AsksForInput));
        let seen: Vec<_> = others.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(seen, [Seen::Input, Seen::Ran(End::Record)]);
        site.assert_nothing_is_left(&[first]);
    });
}

#[test]
fn another_call_under_the_key_of_a_running_one_never_waits_for_it() {
    schedules::all(|| {
        let site = Site::new(&[]);
        let (first, other) = (entrant(1, 1), entrant(1, 2));
        let seen = at_once(&site, &[first, other]);
        // The record that it is given is one of another call, which the engine takes for a conflict.
        let ran = count(&seen, Seen::Ran(End::Record));
        let refused = count(&seen, Seen::Conflict) + count(&seen, Seen::Result(0));
        assert_eq!((ran, refused), (1, 1), "{seen:?}");
    });
}

#[test]
fn no_more_calls_wait_than_the_process_may_have() {
    schedules::all(|| {
        let site = Site::with_limits(&[], 8, 1);
        let calls = [entrant(1, 1), entrant(2, 1)];
        let leaders = calls.map(|call| leading(&site, call));
        let others = calls.map(|call| {
            let site = Arc::clone(&site);
            thread::spawn(move || match site.flights.enter(call) {
                Entry::Wait(waiting) => Some(waiting),
                Entry::Full => None,
                _ => panic!("two calls lead"),
            })
        });
        let waiting = others.map(|other| other.join().unwrap());
        assert_eq!(waiting.iter().flatten().count(), 1);
        assert_eq!(site.flights.waiting(), 1);
        drop((waiting, leaders));
        site.assert_nothing_is_left(&calls);
    });
}

#[test]
fn the_place_of_a_call_that_has_left_is_free() {
    schedules::all(|| {
        let site = Site::with_limits(&[], 1, 1);
        let call = entrant(1, 1);
        let leader = leading(&site, call);
        let leaving = queued(&site, call);
        let leaves = thread::spawn({
            let site = Arc::clone(&site);
            move || site.leave(leaving, false)
        });
        let early = site.flights.enter(call);
        let early = match early {
            Entry::Wait(waiting) => Some(waiting),
            Entry::Full => None,
            _ => panic!("two calls lead"),
        };
        leaves.join().unwrap();
        let waiting = early.unwrap_or_else(|| queued(&site, call));
        site.lead(leader, call);
        assert_eq!(site.wait(waiting, call), Seen::Result(0));
        site.assert_nothing_is_left(&[call]);
    });
}

#[test]
fn whatever_becomes_of_calls_each_is_answered_and_none_is_remembered() {
    const ENDS: [End; 6] = [
        End::Record,
        End::Fails,
        End::StepsDown,
        End::IsDropped,
        End::Resigns,
        End::AsksForInput,
    ];
    schedules::many(|| {
        let mut random = thread_rng();
        let ends: Vec<_> = (0..4)
            .map(|_| ENDS[random.gen_range(0..ENDS.len())])
            .collect();
        let site = Site::with_limits(&ends, 3, 4);
        let calls: Vec<_> = (0..5)
            .map(|_| {
                let mut call = entrant(random.gen_range(1..3), random.gen_range(1..3));
                call.round = random.gen_bool(0.3).then_some([1; 32]);
                call.patient = random.gen_bool(0.8);
                (call, random.gen_bool(0.3), random.gen_bool(0.5))
            })
            .collect();
        let tasks: Vec<_> = calls
            .iter()
            .map(|&(call, leaves, looks)| {
                let site = Arc::clone(&site);
                thread::spawn(move || match site.flights.enter(call) {
                    Entry::Wait(waiting) if leaves => site.leave(waiting, looks),
                    Entry::Wait(waiting) => site.wait(waiting, call),
                    Entry::Lead(leader) => site.lead(leader, call),
                    Entry::Conflict => Seen::Conflict,
                    Entry::InProgress => Seen::InProgress,
                    Entry::Full => Seen::Full,
                })
            })
            .collect();
        for task in tasks {
            task.join().unwrap();
        }
        let tickets: Vec<_> = calls.iter().map(|(call, ..)| *call).collect();
        site.assert_nothing_is_left(&tickets);
    });
}
