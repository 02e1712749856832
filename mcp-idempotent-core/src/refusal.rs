//! The engine's refusals and their sentences. Those that come from a record are in
//! [`answer`](crate::answer).
//!
//! The public ones are for the doors (the attribute, the layer and the relay) when they run calls
//! without protection.

mod ended;
mod rotated_keys;
mod secret;

use std::time::Duration;

use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    store::{StoreError, StoreErrorKind},
};

pub(crate) use crate::answer::{conflict, in_progress, still_in_doubt};

pub use self::ended::{
    after_acting, of_unrecorded, session_ended, session_ended_after_acting, still_held,
};
pub(crate) use self::{
    ended::{
        commit_unknown, ended_by_handler, fenced, not_committed, not_committed_after_acting,
        not_completed, not_encoded, not_encoded_after_acting,
    },
    rotated_keys::{in_doubt_under_another_key, key_rotated},
    secret::{
        ANOTHER_SECRET, PREVIOUS_SECRET_NEEDED, PREVIOUS_SECRET_UNSETTLED, another_secret,
        previous_secret_has_unsettled_calls, previous_secret_needed,
        rotated_keys_during_replacement, rotation_too_short,
    },
};

/// How long callers are told to wait before they send a call again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long callers are told to wait when they have used up their quota.
const QUOTA_AFTER: Duration = Duration::from_secs(60);

pub(crate) fn called_from_itself() -> Refusal {
    Refusal::new(
        ErrorKind::KeyInProgress,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        "This call was made from inside the handler of the very call that holds this idempotency \
         key, so it would wait for itself. It was not executed. A nested call needs a key of its \
         own.",
    )
}

/// One of the calls ahead may have taken effect.
pub(crate) fn gave_up() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "Equal calls ahead of this one ended without a result. This call was not executed. Send it \
         again with the same key.",
    )
    .with_message_without_key(
        "Equal calls ahead of this one ended without a result. This call was not executed. Send \
         exactly the same call again.",
    )
    .with_retry_after(RETRY_AFTER)
}

/// The scope has no new call left in its quota.
pub(crate) fn too_many_new_calls() -> Refusal {
    Refusal::new(
        ErrorKind::TooManyNewCalls,
        CommitOutcome::NotCommitted,
        Action::Wait,
        "This caller has begun too many new calls. This one was not executed. Wait, then send it \
         again with the same key.",
    )
    .with_message_without_key(
        "This caller has begun too many new calls. This one was not executed. Wait, then send exactly \
         the same call again.",
    )
    .with_retry_after(QUOTA_AFTER)
}

pub(crate) fn too_many_waiting() -> Refusal {
    Refusal::new(
        ErrorKind::TooManyWaiting,
        CommitOutcome::Unknown,
        Action::Wait,
        "Too many calls already wait for a running call. This one was not executed. Wait, then \
         send it again with the same key.",
    )
    .with_message_without_key(
        "Too many calls already wait for a running call. This one was not executed. Wait, then send \
         exactly the same call again, without adding a key.",
    )
    .with_retry_after(RETRY_AFTER)
}

/// The store failed before the handler ran. The cause is logged.
#[must_use]
pub fn store_unavailable(error: StoreError) -> Refusal {
    let refusal = match error.kind() {
        StoreErrorKind::Misconfigured => Refusal::new(
            ErrorKind::Misconfigured,
            CommitOutcome::NotCommitted,
            Action::AskOperator,
            "The store of idempotency records is not set up, so the call was not executed. The \
             server's author must create its tables (`migrate()`) or grant the rights that its \
             documentation names; the server's log has the cause.",
        ),
        StoreErrorKind::Busy => Refusal::new(
            ErrorKind::StoreUnavailable,
            CommitOutcome::NotCommitted,
            Action::RetrySameKey,
            "The database was busy with other calls for too long, so the call was not executed. \
             Send it again with the same key.",
        )
        .with_message_without_key(
            "The database was busy with other calls for too long, so the call was not executed. \
             Send exactly the same call again.",
        )
        .with_retry_after(RETRY_AFTER),
        StoreErrorKind::Unavailable
        | StoreErrorKind::Conflict
        | StoreErrorKind::Aborted
        | StoreErrorKind::Other => Refusal::new(
            ErrorKind::StoreUnavailable,
            CommitOutcome::NotCommitted,
            Action::RetrySameKey,
            "The store of idempotency records could not be reached in time, so the call was not \
             executed. Send it again with the same key.",
        )
        .with_message_without_key(
            "The store of idempotency records could not be reached in time, so the call was not \
             executed. Send exactly the same call again.",
        )
        .with_retry_after(RETRY_AFTER),
    };
    if error.kind() == StoreErrorKind::Misconfigured {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "the idempotency store is not set up: call `migrate()` at start-up, or `verify()` to see what is missing"
        );
    } else {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "the idempotency store failed before the handler ran"
        );
    }
    refusal.with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        answer::{expired, in_doubt, too_large},
        fingerprint::KeyKind,
        policy::OnDoubt,
    };

    /// Every refusal of this module, with each reason that it knows.
    fn all() -> Vec<Refusal> {
        let error = |kind| StoreError::new(kind, "away");
        let kinds = [
            StoreErrorKind::Unavailable,
            StoreErrorKind::Other,
            StoreErrorKind::Busy,
        ];
        let mut refusals = vec![
            in_progress(),
            in_doubt(),
            still_in_doubt(),
            expired(),
            too_large(),
            gave_up(),
            too_many_waiting(),
            too_many_new_calls(),
            another_secret(),
            previous_secret_needed(),
            previous_secret_has_unsettled_calls(),
            not_encoded(&error(StoreErrorKind::Other)),
        ];
        for kind in kinds {
            refusals.push(store_unavailable(error(kind)));
            refusals.push(not_committed(error(kind)));
            refusals.push(commit_unknown(error(kind)));
        }
        for on_doubt in [OnDoubt::Fail, OnDoubt::Rerun, OnDoubt::Verify] {
            refusals.push(still_held(on_doubt));
            refusals.push(ended_by_handler(on_doubt));
            refusals.push(fenced(on_doubt));
            refusals.push(not_completed(on_doubt));
            let encoding = error(StoreErrorKind::Other);
            refusals.push(not_encoded_after_acting(&encoding, on_doubt));
            refusals.push(not_committed_after_acting(
                error(StoreErrorKind::Other),
                on_doubt,
            ));
        }
        refusals
    }

    /// A key that such a caller adds makes its call another one, and the tool runs twice.
    #[test]
    fn a_caller_who_sent_no_key_is_not_told_of_a_key_that_it_has() {
        for refusal in all() {
            let keyless = refusal.message_for(KeyKind::Derived);
            for words in ["same key", "new key", "this key", "this idempotency key"] {
                assert!(!keyless.contains(words), "{keyless}");
            }
            assert_eq!(refusal.message_for(KeyKind::Explicit), refusal.message());
        }
    }

    #[test]
    fn the_page_about_the_wire_says_how_long_each_refusal_asks_to_wait() {
        let page = include_str!("../../docs/wire.md");
        for refusal in all() {
            let (kind, outcome) = (refusal.kind().as_str(), refusal.outcome().as_str());
            let rows = page.lines().filter_map(|line| {
                let cells: Vec<_> = line.split('|').map(str::trim).collect();
                let [_, is_kind, _, is_outcome, is_action, wait, ..] = *cells else {
                    return None;
                };
                let action = refusal.action().as_str();
                let names = [(is_kind, kind), (is_outcome, outcome), (is_action, action)];
                let is_row = names
                    .iter()
                    .all(|(cell, name)| *cell == format!("`{name}`"));
                is_row.then_some(wait)
            });
            let rows: Vec<_> = rows.collect();
            let says_so = |cell: &&str| match refusal.retry_after() {
                Some(wait) => cell.starts_with(&wait.as_millis().to_string()),
                // Some rows are of several refusals, and say which of them ask for it.
                None => *cell == "–" || cell.contains(", "),
            };
            assert!(rows.iter().any(says_so), "{rows:?}: {refusal:?}");
        }
    }
}
