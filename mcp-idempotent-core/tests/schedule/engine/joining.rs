//! Calls that meet at one record in one process.

use std::sync::Arc;

use shuttle::{
    rand::{Rng as _, thread_rng},
    thread,
};

use super::{
    flight::Entry,
    site::{End, Seen, Site, at_once, count, entrant, leading, queued},
};
use crate::schedules;

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
