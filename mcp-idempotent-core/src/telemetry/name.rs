//! The names of the span, the metrics and their labels.

#[cfg(doc)]
use super::Outcome;
#[cfg(doc)]
use crate::scope::Application;

/// The name of the span of a call.
pub const SPAN: &str = "idempotent_call";

/// Counter: calls that have ended, by [`LABEL_OUTCOME`].
pub const CALLS: &str = "mcp_idempotent_calls_total";
/// Gauge: calls that have begun and not ended.
pub const CALLS_IN_FLIGHT: &str = "mcp_idempotent_calls_in_flight";
/// Gauge: calls that wait for an identical one.
pub const CALLS_WAITING: &str = "mcp_idempotent_calls_waiting";
/// Histogram: from the claim to the answer.
pub const CALL_DURATION: &str = "mcp_idempotent_call_duration_seconds";
/// Histogram: the handler alone.
pub const HANDLER_DURATION: &str = "mcp_idempotent_handler_duration_seconds";
/// Histogram: how long a call waited for an identical one.
pub const WAIT_DURATION: &str = "mcp_idempotent_wait_duration_seconds";
/// Counter: leases that were lost while their handler ran.
pub const LEASES_LOST: &str = "mcp_idempotent_leases_lost_total";
/// Counter: renewals of a lease that failed, and were tried again.
pub const RENEWALS_FAILED: &str = "mcp_idempotent_renewals_failed_total";
/// Counter: calls to which an equal call under another key was found
/// ([`Policy::rotated_keys`](crate::Policy::rotated_keys)).
pub const ROTATED_KEYS: &str = "mcp_idempotent_rotated_keys_total";
/// Gauge: records in doubt when they were last counted
/// ([`Engine::count_in_doubt`](crate::Engine::count_in_doubt)).
pub const RECORDS_IN_DOUBT: &str = "mcp_idempotent_records_in_doubt";
/// Counter: records that sweeps removed, or reduced to a tombstone.
pub const SWEPT: &str = "mcp_idempotent_swept_records_total";
/// Histogram: a sweep, from its first batch to its last. Its count is that of the sweeps that have
/// left nothing behind.
pub const SWEEP_DURATION: &str = "mcp_idempotent_sweep_duration_seconds";

/// Label of all metrics: the [`Application`].
pub const LABEL_APPLICATION: &str = "application";
/// Label of the metrics of single calls except the gauges: the tool's name, or [`UNLISTED_TOOL`].
pub const LABEL_TOOL: &str = "tool";
/// Label: how the call ended, an [`Outcome`].
pub const LABEL_OUTCOME: &str = "outcome";

/// Used instead of the name of a tool that the server does not list
/// ([`Request::with_unlisted_tool`](crate::Request::with_unlisted_tool)).
pub const UNLISTED_TOOL: &str = "(unlisted)";
