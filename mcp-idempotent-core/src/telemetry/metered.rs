//! Counting and timing, through the `metrics` facade.

use std::sync::Arc;

use metrics::{Gauge, Histogram, Label, SharedString, Unit};
use tokio::time::Instant;

use super::{
    name::{
        CALL_DURATION, CALLS, CALLS_IN_FLIGHT, CALLS_WAITING, HANDLER_DURATION, LABEL_APPLICATION,
        LABEL_OUTCOME, LABEL_TOOL, UNLISTED_TOOL, WAIT_DURATION,
    },
    outcome::Outcome,
};
use crate::scope::Application;

/// Tells the installed recorder what each metric means, and its unit.
pub fn describe() {
    metrics::describe_counter!(CALLS, Unit::Count, "Calls that have ended, by outcome");
    metrics::describe_gauge!(
        CALLS_IN_FLIGHT,
        Unit::Count,
        "Calls that have begun and not ended"
    );
    metrics::describe_gauge!(
        CALLS_WAITING,
        Unit::Count,
        "Calls that wait for an equal one"
    );
    metrics::describe_histogram!(CALL_DURATION, Unit::Seconds, "From the claim to the answer");
    metrics::describe_histogram!(HANDLER_DURATION, Unit::Seconds, "The handler alone");
    metrics::describe_histogram!(
        WAIT_DURATION,
        Unit::Seconds,
        "How long a call waited for an equal one"
    );
}

/// The measurements of one call.
pub(super) struct Meter {
    application: SharedString,
    tool: SharedString,
    started: Instant,
    /// Kept, so that what is counted up is counted down in the same recorder.
    in_flight: Up,
}

impl Meter {
    /// Without a tool, it is one that the server does not list.
    pub(super) fn start(application: &Application, tool: Option<&Arc<str>>) -> Self {
        let application = SharedString::from(application.to_shared());
        Self {
            in_flight: Up::new(CALLS_IN_FLIGHT, &application),
            application,
            tool: tool.map_or(UNLISTED_TOOL.into(), |tool| Arc::clone(tool).into()),
            started: Instant::now(),
        }
    }

    pub(super) fn handler(&self) -> Timer {
        Timer {
            started: Instant::now(),
            histogram: metrics::histogram!(HANDLER_DURATION, self.labels()),
            _waiting: None,
        }
    }

    pub(super) fn waiting(&self) -> Timer {
        Timer {
            started: Instant::now(),
            histogram: metrics::histogram!(WAIT_DURATION, self.labels()),
            _waiting: Some(Up::new(CALLS_WAITING, &self.application)),
        }
    }

    pub(super) fn end(self, outcome: Outcome) {
        let mut labels = self.labels();
        labels.push(Label::from_static_parts(LABEL_OUTCOME, outcome.as_str()));
        metrics::counter!(CALLS, labels.clone()).increment(1);
        metrics::histogram!(CALL_DURATION, labels).record(self.started.elapsed());
        drop(self.in_flight);
    }

    fn labels(&self) -> Vec<Label> {
        let mut labels = Vec::with_capacity(3);
        labels.push(Label::new(LABEL_APPLICATION, self.application.clone()));
        labels.push(Label::new(LABEL_TOOL, self.tool.clone()));
        labels
    }
}

/// Measures how long it lives.
pub struct Timer {
    started: Instant,
    histogram: Histogram,
    _waiting: Option<Up>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.histogram.record(self.started.elapsed());
    }
}

/// One in a gauge, for as long as it lives.
struct Up(Gauge);

impl Up {
    fn new(name: &'static str, application: &SharedString) -> Self {
        let gauge = metrics::gauge!(name, LABEL_APPLICATION => application.clone());
        gauge.increment(1);
        Self(gauge)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

impl std::fmt::Debug for Timer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timer")
    }
}
