//! Counting and timing, through the `metrics` facade.

use std::sync::Arc;

use metrics::{Gauge, Histogram, Label, SharedString, Unit};
use tokio::time::Instant;

use super::{
    name::{
        CALL_DURATION, CALLS, CALLS_IN_FLIGHT, CALLS_WAITING, HANDLER_DURATION, LABEL_APPLICATION,
        LABEL_OUTCOME, LABEL_TOOL, LEASES_LOST, RECORDS_IN_DOUBT, RENEWALS_FAILED, ROTATED_KEYS,
        SWEEP_DURATION, SWEPT, UNLISTED_TOOL, WAIT_DURATION,
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
    metrics::describe_counter!(
        LEASES_LOST,
        Unit::Count,
        "Leases that were lost while their handler ran"
    );
    metrics::describe_counter!(
        RENEWALS_FAILED,
        Unit::Count,
        "Renewals of a lease that failed, and were tried again"
    );
    metrics::describe_counter!(
        ROTATED_KEYS,
        Unit::Count,
        "Calls to which an equal call under another key was found"
    );
    metrics::describe_gauge!(
        RECORDS_IN_DOUBT,
        Unit::Count,
        "Records in doubt when they were last counted"
    );
    metrics::describe_counter!(SWEPT, Unit::Count, "Records that sweeps removed");
    metrics::describe_histogram!(
        SWEEP_DURATION,
        Unit::Seconds,
        "A sweep, from its first batch to its last"
    );
}

/// A running call has lost its lease.
pub(crate) fn lease_lost(application: &Application) {
    metrics::counter!(LEASES_LOST, LABEL_APPLICATION => application.to_shared()).increment(1);
}

/// A lease could not be renewed, and is tried again.
pub(crate) fn renewal_failed(application: &Application) {
    metrics::counter!(RENEWALS_FAILED, LABEL_APPLICATION => application.to_shared()).increment(1);
}

/// So many records are in doubt.
pub(crate) fn in_doubt(application: &Application, records: u32) {
    metrics::gauge!(RECORDS_IN_DOUBT, LABEL_APPLICATION => application.to_shared()).set(records);
}

/// One sweep, while it goes on.
pub(crate) struct Sweep {
    application: SharedString,
    began: Instant,
}

impl Sweep {
    pub(crate) fn begin(application: &Application) -> Self {
        Self {
            application: application.to_shared().into(),
            began: Instant::now(),
        }
    }

    /// A batch has removed so many records.
    pub(crate) fn removed(&self, records: u64) {
        metrics::counter!(SWEPT, LABEL_APPLICATION => self.application.clone()).increment(records);
    }

    /// Nothing is left.
    pub(crate) fn end(self) {
        metrics::histogram!(SWEEP_DURATION, LABEL_APPLICATION => self.application.clone())
            .record(self.began.elapsed());
    }
}

/// The measurements of one call.
pub(super) struct Meter {
    application: SharedString,
    tool: SharedString,
    started: Instant,
    /// Kept so that the gauge goes up and down in the same recorder.
    in_flight: Up,
}

impl Meter {
    /// `None` stands for a tool that the server does not list.
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

    pub(super) fn rotated_key(&self) {
        metrics::counter!(ROTATED_KEYS, self.labels()).increment(1);
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

/// Measures the time until it is dropped.
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

/// Adds one to a gauge until it is dropped.
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
