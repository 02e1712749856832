//! What the protocol promises while a secret is replaced, and what breaks each promise.

use std::collections::BTreeSet;

use stateright::{Checker as _, Model as _, Property};

use super::{Fault, Rotation, State, Told};

pub(super) fn all() -> Vec<Property<Rotation>> {
    vec![
        Property::always(ONE_EFFECT, |_, state: &State| state.effects.len() <= 1),
        Property::always(BOTH_OR_NEITHER, |_, state: &State| {
            state.new.is_none() || state.new == state.old_result()
        }),
        Property::always(ONE_RESULT, |_, state: &State| {
            let results: BTreeSet<_> = state.successes().collect();
            results.len() <= 1 && results.iter().all(|result| state.effects.contains(result))
        }),
        Property::always(TRUE_DENIAL, |_, state: &State| {
            let denied = |number| state.told.contains(&Told::NotCommitted(number));
            !state.effects.iter().any(|number| denied(*number))
        }),
        Property::sometimes(
            "the next version replays the previous one's result",
            |_, state| {
                told(state, |told| matches!(told, Told::Executed(_, true)))
                    && told(state, |told| matches!(told, Told::Replayed(_, false)))
            },
        ),
        Property::sometimes(
            "the previous version replays the next one's result",
            |_, state| {
                told(state, |told| matches!(told, Told::Executed(_, false)))
                    && told(state, |told| matches!(told, Told::Replayed(_, true)))
            },
        ),
        Property::sometimes(
            "a call runs under a guard that was taken over",
            |_, state| {
                told(state, |told| matches!(told, Told::Executed(2, false)))
                    && state.old.drawn() == 2
                    && !told(state, |told| matches!(told, Told::NotCommitted(_)))
            },
        ),
    ]
}

fn told(state: &State, is: fn(&Told) -> bool) -> bool {
    state.told.iter().any(is)
}

const ONE_EFFECT: &str = "at most one effect, whichever version runs the call";
const BOTH_OR_NEITHER: &str = "a record under the new id is under the previous one too";
const ONE_RESULT: &str = "all that succeed get the result of one effect";
const TRUE_DENIAL: &str = "what is said not to be committed never is";
const PROMISES: [&str; 4] = [ONE_EFFECT, BOTH_OR_NEITHER, ONE_RESULT, TRUE_DENIAL];

fn rotation(previous: &[u8], both: &[u8]) -> Rotation {
    Rotation {
        previous: previous.to_vec(),
        both: both.to_vec(),
        lapses: 2,
        releases: 1,
        fault: None,
    }
}

#[test]
fn while_a_secret_is_replaced_both_versions_have_one_effect_and_one_result() {
    for (previous, both) in [(&[2][..], &[2][..]), (&[1], &[1, 1]), (&[1, 1], &[2])] {
        let checker = rotation(previous, both).checker().spawn_bfs().join();
        checker.assert_properties();
    }
}

/// That a guard which ended without telling keeps the previous id costs an answer, and saves nothing
/// here: without its guard, a transaction does not commit.
#[test]
fn each_fault_in_the_guard_breaks_its_promises_and_no_others() {
    let faults: [(Fault, &[&str]); _] = [
        (Fault::NoGuard, &[ONE_EFFECT, BOTH_OR_NEITHER, ONE_RESULT]),
        (
            Fault::GuardUnchecked,
            &[ONE_EFFECT, BOTH_OR_NEITHER, ONE_RESULT],
        ),
        (
            Fault::GuardLater,
            &[ONE_EFFECT, BOTH_OR_NEITHER, ONE_RESULT],
        ),
        (Fault::LapsedIsFree, &[]),
    ];
    for (fault, broken) in faults {
        let mut model = rotation(&[2], &[2]);
        model.fault = Some(fault);
        let found = model.checker().spawn_bfs().join().discoveries();
        for promise in PROMISES {
            let kept = !found.contains_key(promise);
            assert_eq!(kept, !broken.contains(&promise), "{fault:?}: {promise}");
        }
    }
}
