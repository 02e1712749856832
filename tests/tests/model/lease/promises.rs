//! What the protocol promises in lease mode, and what breaks each promise.

use std::collections::BTreeSet;

use stateright::{Checker as _, HasDiscoveries, Model as _, Property};

use super::{Fault, Leases, OnDoubt, State, Told};

pub(super) fn all() -> Vec<Property<Leases>> {
    vec![
        Property::always(ONE_EXECUTION, |model: &Leases, state: &State| {
            model.on_doubt == OnDoubt::Rerun || state.acted <= 1 + state.freed
        }),
        Property::always(ONE_EFFECT, |model: &Leases, state: &State| {
            let (known, freed) = (model.honours_keys, state.freed);
            let allowed = 1 + if known { state.denied } else { freed };
            state.effects.len() <= usize::from(allowed)
        }),
        Property::always(ONE_RESULT, |_, state: &State| {
            let results: BTreeSet<_> = state.successes().collect();
            state.effects.len() > 1 || state.confirmed || results.len() <= 1
        }),
        Property::always(REAL_SUCCESS, |_, state: &State| {
            state.confirmed || state.successes().next().is_none() || !state.effects.is_empty()
        }),
        Property::always(TRUE_DENIAL, |_, state: &State| {
            !state.told.contains(&Told::NotExecuted { rightly: false })
        }),
        Property::always(ONE_HOLDER, |_, state: &State| !state.trespassed),
        Property::sometimes("a retry gets the first result", |_, state: &State| {
            let told = |is: fn(&Told) -> bool| state.told.iter().any(is);
            told(|told| matches!(told, Told::Replayed(_)))
                && told(|told| matches!(told, Told::Executed(_)))
        }),
        Property::sometimes("an outcome is unknown", |_, state: &State| {
            state.told.contains(&Told::Unknown)
        }),
        Property::sometimes("a late attempt is fenced", |_, state: &State| {
            state.told.contains(&Told::Fenced)
        }),
        Property::sometimes(
            "a completion is found whose answer was lost",
            |_, state: &State| state.told.contains(&Told::FoundCompleted),
        ),
    ]
}

const ONE_EXECUTION: &str = "at most one execution, unless an operator frees the key";
const ONE_EFFECT: &str = "one effect, unless an operator says that there was none";
const ONE_RESULT: &str = "all that succeed with one effect get one result";
const REAL_SUCCESS: &str = "a success has an effect";
const TRUE_DENIAL: &str = "what is said not to have run has not";
const ONE_HOLDER: &str = "only the current attempt changes the record";

fn fail() -> Leases {
    Leases::new(OnDoubt::Fail)
}

/// The other system takes two requests with one downstream key for one.
fn rerun() -> Leases {
    Leases {
        honours_keys: true,
        lapses: 2,
        resolutions: 0,
        ..Leases::new(OnDoubt::Rerun)
    }
}

fn assert_holds(model: Leases) {
    model.checker().spawn_bfs().join().assert_properties();
}

fn assert_violates(model: Leases, promise: &'static str) {
    let finish = HasDiscoveries::AllOf(BTreeSet::from([promise]));
    let named = format!("{model:?}");
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    assert!(
        checker.discovery(promise).is_some(),
        "{named} keeps: {promise}"
    );
}

#[test]
fn under_fail_a_call_acts_at_most_once() {
    assert_holds(fail());
}

#[test]
fn under_rerun_a_call_has_one_effect_where_its_downstream_key_is_honoured() {
    assert_holds(rerun());
}

#[test]
fn three_processes_keep_the_promises_of_two() {
    let calls = || vec![1, 1, 1];
    assert_holds(Leases {
        calls: calls(),
        ..fail()
    });
    assert_holds(Leases {
        calls: calls(),
        ..rerun()
    });
}

#[test]
fn under_rerun_a_call_repeats_where_its_downstream_key_is_not_honoured() {
    let model = Leases {
        honours_keys: false,
        ..rerun()
    };
    assert_violates(model, ONE_EFFECT);
}

#[test]
fn each_fault_in_the_protocol_breaks_its_promise() {
    let faults = [
        (fail(), Fault::NoFencing, ONE_HOLDER),
        (fail(), Fault::CheckBeforeWrite, ONE_HOLDER),
        (fail(), Fault::ReusedTokens, ONE_HOLDER),
        (fail(), Fault::LapsedIsFree, ONE_EXECUTION),
        (fail(), Fault::ReleaseOnError, ONE_EXECUTION),
        (rerun(), Fault::ReleaseAfterTakeover, ONE_EFFECT),
        (rerun(), Fault::OriginPerAttempt, ONE_EFFECT),
        (fail(), Fault::LostAnswerIsFailure, TRUE_DENIAL),
    ];
    for (model, fault, promise) in faults {
        let fault = Some(fault);
        assert_violates(Leases { fault, ..model }, promise);
    }
}
