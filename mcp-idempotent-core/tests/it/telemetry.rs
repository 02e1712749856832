//! The operator's guide names what is reported, and nothing else.

use std::collections::BTreeSet;

use mcp_idempotent_core::telemetry::{self, Outcome};

const GUIDE: &str = include_str!("../../../docs/operating.md");

/// The names in the first column of the table under a heading.
fn first_column(heading: &str) -> BTreeSet<&'static str> {
    let (_, section) = GUIDE.split_once(heading).expect("the heading is there");
    section
        .lines()
        .skip_while(|line| !line.starts_with("| ---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.split('`').nth(1).expect("a name in back ticks"))
        .collect()
}

#[test]
fn the_guide_has_every_metric_and_every_outcome() {
    let metrics = [
        telemetry::CALLS,
        telemetry::CALLS_IN_FLIGHT,
        telemetry::CALLS_WAITING,
        telemetry::CALL_DURATION,
        telemetry::HANDLER_DURATION,
        telemetry::WAIT_DURATION,
        telemetry::LEASES_LOST,
        telemetry::ROTATED_KEYS,
        telemetry::RENEWALS_FAILED,
        telemetry::RECORDS_IN_DOUBT,
        telemetry::SWEPT,
        telemetry::SWEEP_DURATION,
    ];
    assert_eq!(first_column("\n## Metrics\n"), BTreeSet::from(metrics));
    let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str());
    assert_eq!(
        first_column("\n### Outcomes\n"),
        outcomes.collect::<BTreeSet<_>>()
    );
    for word in [
        telemetry::SPAN,
        telemetry::LABEL_APPLICATION,
        telemetry::LABEL_TOOL,
        telemetry::LABEL_OUTCOME,
        telemetry::UNLISTED_TOOL,
    ] {
        assert!(GUIDE.contains(&format!("`{word}`")), "{word}");
    }
}
