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

/// Label of all metrics: the [`Application`].
pub const LABEL_APPLICATION: &str = "application";
/// Label of all metrics except the gauges: the tool's name, or [`UNLISTED_TOOL`].
pub const LABEL_TOOL: &str = "tool";
/// Label: how the call ended, an [`Outcome`].
pub const LABEL_OUTCOME: &str = "outcome";

/// Used instead of the name of a tool that the server does not list
/// ([`Request::with_unlisted_tool`](crate::Request::with_unlisted_tool)).
pub const UNLISTED_TOOL: &str = "(unlisted)";
