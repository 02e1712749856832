//! Refusals of a process that may not rely on its secret.

use std::time::Duration;

use crate::error::{Action, CommitOutcome, ErrorKind, Refusal};

// What is wrong, and the remedy: for the log, and for the person who starts the server.
pub(crate) const ANOTHER_SECRET: &str = "the application's records were made under a different secret than this engine's, or under none; give it the same secret, replace the old one with `with_previous_secret`, or use another application name";

pub(crate) const PREVIOUS_SECRET_NEEDED: &str = "records made under the previous secret are still kept; keep `with_previous_secret` until one retention has passed since the last process without it ended";

pub(crate) const PREVIOUS_SECRET_UNSETTLED: &str = "calls under the previous secret are in progress or in doubt, and would not be found without it; resolve them, or keep `with_previous_secret` until they are settled";

pub(crate) fn another_secret() -> Refusal {
    tracing::error!("{ANOTHER_SECRET}");
    misconfigured(
        "The server's secret does not match its idempotency records, so the call was not \
         executed. The server's log names the remedy.",
    )
}

pub(crate) fn previous_secret_needed() -> Refusal {
    tracing::error!("{PREVIOUS_SECRET_NEEDED}");
    too_early()
}

fn too_early() -> Refusal {
    misconfigured(
        "The server's secret was replaced too early for its idempotency records, so the call was \
         not executed. The server's log names the remedy.",
    )
}

pub(crate) fn previous_secret_has_unsettled_calls() -> Refusal {
    tracing::error!("{PREVIOUS_SECRET_UNSETTLED}");
    too_early()
}

pub(crate) fn rotation_too_short(tool: &str, kept: Duration, period: Duration) -> Refusal {
    tracing::error!(
        tool,
        ?kept,
        ?period,
        "the tool's records are kept for longer than the replacement of the secret takes; set `with_rotation_period` to at least as long"
    );
    misconfigured(
        "The server's secret is being replaced in less time than this tool's results are kept, so \
         the call was not executed. The server's log names the remedy.",
    )
}

pub(crate) fn rotated_keys_during_replacement(tool: &str) -> Refusal {
    tracing::error!(
        tool,
        "equal calls under different keys cannot be told apart while a secret or an application's name is replaced; set `RotatedKeys::Allow` until that is over"
    );
    misconfigured(
        "The server's secret is being replaced, and this tool's rules do not allow that, so the call was \
         not executed. The server's log names the remedy.",
    )
}

fn misconfigured(message: &'static str) -> Refusal {
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    )
}
