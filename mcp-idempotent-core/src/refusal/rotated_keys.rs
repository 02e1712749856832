//! Refusals of calls to which an equal call under another key was found.

use std::time::Duration;

use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    record::Timestamp,
};

/// The equal call completed `at` this time and counts for `window`, or is still running.
pub(crate) fn key_rotated(at: Option<Timestamp>, window: Duration) -> Refusal {
    let (found, or_wait) = match at {
        Some(at) => {
            let window = i64::try_from(window.as_micros()).unwrap_or(i64::MAX);
            let until = Timestamp::from_micros(at.as_micros().saturating_add(window));
            (
                format!("was already executed at {at}"),
                format!(", or send it after {until}"),
            )
        }
        None => ("is still running".to_owned(), String::new()),
    };
    Refusal::new(
        ErrorKind::KeyRotated,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        format!(
            "An equal call (same tool, same arguments) under another idempotency key {found}, so this one \
             was not executed. If it is a retry, send it with the key of the first attempt to get that \
             one's result. If you mean it as a new call, send it with a new key that begins with \
             `new-intent:`{or_wait}."
        ),
    )
}

/// It is not known whether the equal call took effect.
pub(crate) fn in_doubt_under_another_key() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "An equal call (same tool, same arguments) under another idempotency key ended without telling \
         whether it took effect, so this one was not executed. Ask the operator to look before repeating \
         it. If you mean it as a new call in any case, send it with a new key that begins with `new-intent:`.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::IdempotencyKey;

    #[test]
    fn a_refusal_says_until_when_and_how_to_ask_anew() {
        let at = Timestamp::from_micros(0);
        let done = key_rotated(Some(at), Duration::from_secs(60));
        assert!(
            done.message().contains("1970-01-01T00:01:00.000Z"),
            "{done}"
        );
        let running = key_rotated(None, Duration::from_secs(60));
        assert!(running.message().contains("still running"), "{running}");
        for refusal in [done, running, in_doubt_under_another_key()] {
            assert!(refusal.message().contains(IdempotencyKey::NEW_INTENT));
        }
    }
}
