//! The judge on trial: evidence that is made up, with one fault each. No server that we could plant shows
//! all of them.

use std::slice;

use super::{Evidence, probed};
use crate::{
    caller::Told,
    row::{Fault, Flushes, Mode, Row, StoreKind, Transport},
    server::Point,
};

fn done(run: &str) -> Told {
    Told::Done {
        run: run.to_owned(),
        is_replay: false,
    }
}

fn replayed(run: &str) -> Told {
    Told::Done {
        run: run.to_owned(),
        is_replay: true,
    }
}

struct Case {
    mode: Mode,
    point: Point,
    early: Vec<Told>,
    late: Vec<Told>,
    runs: usize,
    effects: Vec<&'static str>,
    outside: Option<Vec<&'static str>>,
}

impl Case {
    /// Nothing is wrong with it.
    fn right(mode: Mode) -> Self {
        Self {
            mode,
            point: Point::AfterRecord,
            early: vec![Told::Lost, done("x")],
            late: vec![replayed("x")],
            runs: 1,
            effects: vec!["x"],
            outside: (mode == Mode::LateTransaction).then(|| vec!["x"]),
        }
    }

    fn in_doubt(mode: Mode) -> Self {
        Self {
            point: Point::AfterEffect,
            early: vec![Told::Lost, Told::InDoubt],
            late: vec![Told::InDoubt],
            ..Self::right(mode)
        }
    }

    fn findings(&self) -> String {
        let row = row(self.mode, self.point);
        let owned = |runs: &Vec<&str>| runs.iter().map(|run| (*run).to_owned()).collect();
        let evidence = Evidence {
            row: &row,
            may_doubt: row.may_leave_doubt_of(0),
            early: slice::from_ref(&self.early),
            late: slice::from_ref(&self.late),
            runs: self.runs,
            early_runs: self.runs,
            stood: true,
            effects: owned(&self.effects),
            outside: self.outside.as_ref().map(owned),
        };
        evidence.findings().join("; ")
    }
}

const fn row(mode: Mode, point: Point) -> Row {
    Row {
        fault: Fault::Kill(point),
        transport: Transport::Stdio,
        store: StoreKind::Postgres,
        mode,
    }
}

type Change = fn(&mut Case);

/// What is changed in the right case of a mode, and what is to be found then.
const FAULTS: [(Mode, Change, &str); 12] = [
    (
        Mode::Transaction,
        |it| it.effects.push("y"),
        "repeated effect",
    ),
    (
        Mode::Transaction,
        |it| it.effects.clear(),
        "success without an effect",
    ),
    (
        Mode::Transaction,
        |it| it.late = vec![replayed("y")],
        "successes differ",
    ),
    (
        Mode::Transaction,
        |it| it.effects = vec!["y"],
        "success of another execution than the effect's",
    ),
    (
        Mode::Lease,
        |it| it.early = vec![Told::Lost],
        "a caller without an answer",
    ),
    (
        Mode::Lease,
        |it| it.early = vec![Told::Conflict],
        "conflict of a call with itself",
    ),
    (
        Mode::Transaction,
        |it| it.early = vec![Told::InDoubt],
        "in doubt, where the outcome can be known",
    ),
    (
        Mode::Transaction,
        |it| it.late = vec![done("x")],
        "effect without a record",
    ),
    (
        Mode::Transaction,
        |it| it.effects.clear(),
        "record without an effect",
    ),
    (Mode::Lease, |it| it.runs = 2, "executed more than once"),
    (
        Mode::LateTransaction,
        |it| it.outside = Some(vec!["x", "y"]),
        "repeated effect outside",
    ),
    (
        Mode::LateTransaction,
        |it| it.outside = Some(vec!["y"]),
        "one effect of two",
    ),
];

/// # Panics
///
/// The judge does not find what it is there for, or finds what is not.
pub(crate) fn assert_finds_each_fault() {
    for mode in [Mode::Transaction, Mode::Lease, Mode::LateTransaction] {
        assert_eq!(Case::right(mode).findings(), "", "{mode}");
    }
    assert_eq!(Case::in_doubt(Mode::Lease).findings(), "");
    for (mode, change, fault) in FAULTS {
        let mut case = Case::right(mode);
        change(&mut case);
        let found = case.findings();
        assert!(found.contains(fault), "{mode}: {fault}: {found:?}");
    }
    let mut forgotten = Case::in_doubt(Mode::Lease);
    forgotten.early = vec![done("x")];
    let found = forgotten.findings();
    assert!(
        found.contains("in doubt after a recorded success"),
        "{found:?}"
    );
    let mut revived = Case::in_doubt(Mode::Lease);
    revived.late = vec![replayed("x")];
    let found = revived.findings();
    assert!(found.contains("success after it was in doubt"), "{found:?}");
    assert!(found.contains("no transitions of the model"), "{found:?}");

    let mut between = Case::in_doubt(Mode::Lease);
    between.late = vec![done("x"), Told::InDoubt];
    let found = between.findings();
    let forgotten = "in doubt after a recorded success";
    assert!(found.contains(forgotten), "{found:?}");
    between.late.reverse();
    let found = between.findings();
    assert!(!found.contains(forgotten), "{found:?}");

    let losing = Row {
        fault: Fault::LosePower(Flushes::None),
        ..row(Mode::Transaction, Point::AfterEffect)
    };
    assert!(losing.finds_as_it_should(&["successes differ"]));
    assert!(!losing.finds_as_it_should(&[]));
    assert!(!losing.finds_as_it_should(&["successes differ", "repeated effect"]));

    let row = row(Mode::Transaction, Point::AfterEffect);
    assert!(probed(&row, &[Told::Conflict], &[], &[]).is_empty());
    assert_eq!(probed(&row, &[done("x")], &[], &[]).len(), 1);
    let other = "a.r0c0other/x".to_owned();
    assert_eq!(probed(&row, &[], slice::from_ref(&other), &[]).len(), 1);
}
