//! What the protocol promises in transaction mode, and what breaks each promise.

use std::collections::BTreeSet;

use stateright::{Checker as _, Model as _, Property};

use super::{Fault, State, Told, Transactions};

pub(super) fn all() -> Vec<Property<Transactions>> {
    vec![
        Property::always(ONE_EFFECT, |_, state: &State| state.effects.len() <= 1),
        Property::always(BOTH_OR_NEITHER, |_, state: &State| {
            state.effects.last().copied() == state.record
        }),
        Property::always(ONE_RESULT, |_, state: &State| {
            let results: BTreeSet<_> = state.successes().collect();
            results.len() <= 1 && results.iter().all(|result| state.effects.contains(result))
        }),
        Property::always(TRUE_DENIAL, |_, state: &State| {
            let denied = |number| state.told.contains(&Told::NotCommitted(number));
            !state.effects.iter().any(|number| denied(*number))
        }),
        Property::always(NOT_IN_VAIN, |_, state: &State| !state.ran_in_vain),
        Property::sometimes("a retry gets the first result", |_, state: &State| {
            state
                .told
                .iter()
                .any(|told| matches!(told, Told::Replayed(_)))
        }),
        Property::sometimes(
            "a commit is found whose answer was lost",
            |_, state: &State| state.told.iter().any(|told| matches!(told, Told::Found(_))),
        ),
        Property::sometimes(
            "a commit was lost, and a retry has the effect",
            |_, state: &State| {
                state.told.contains(&Told::NotCommitted(1)) && state.effects.contains(&2)
            },
        ),
    ]
}

const ONE_EFFECT: &str = "at most one effect";
const BOTH_OR_NEITHER: &str = "effect and record are both there, or neither";
const ONE_RESULT: &str = "all that succeed get the result of one effect";
const TRUE_DENIAL: &str = "what is said not to be committed never is";
const NOT_IN_VAIN: &str = "no handler runs once there is a record";
const PROMISES: [&str; 5] = [
    ONE_EFFECT,
    BOTH_OR_NEITHER,
    ONE_RESULT,
    TRUE_DENIAL,
    NOT_IN_VAIN,
];

fn protocol(calls: &[u8], faults: &[Fault]) -> Transactions {
    Transactions {
        calls: calls.to_vec(),
        faults: faults.to_vec(),
    }
}

#[test]
fn effect_and_record_are_one_whatever_is_lost() {
    for calls in [&[2, 2][..], &[1, 1, 1]] {
        let checker = protocol(calls, &[]).checker().spawn_bfs().join();
        checker.assert_properties();
    }
}

/// So the lock is no part of the promise of one effect, which rests on the primary key and one
/// transaction alone. What an answer says about a lost commit rests on the lock.
#[test]
fn each_fault_in_the_protocol_breaks_its_promises_and_no_others() {
    let faults: [(&[Fault], &[&str]); _] = [
        (&[Fault::Upsert], &[]),
        (&[Fault::NoLock], &[TRUE_DENIAL, NOT_IN_VAIN]),
        (
            &[Fault::NoLock, Fault::Upsert],
            &[ONE_EFFECT, ONE_RESULT, TRUE_DENIAL, NOT_IN_VAIN],
        ),
        (&[Fault::LookBeforeLock], &[NOT_IN_VAIN]),
        (&[Fault::RecordAfterCommit], &PROMISES),
        (&[Fault::RecoverWithoutLock], &[TRUE_DENIAL]),
        (&[Fault::RecoverBeforeLock], &[TRUE_DENIAL]),
        (&[Fault::BelieveAnyError], &[TRUE_DENIAL]),
    ];
    for (faults, broken) in faults {
        let checker = protocol(&[1, 1], faults).checker().spawn_bfs().join();
        let found = checker.discoveries();
        for promise in PROMISES {
            let kept = !found.contains_key(promise);
            assert_eq!(kept, !broken.contains(&promise), "{faults:?}: {promise}");
        }
    }
}
