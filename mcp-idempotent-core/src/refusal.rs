//! The engine's refusals and their sentences.
//!
//! The public ones are for the attribute and the layer when they run calls without protection.

mod secret;

use std::time::Duration;

pub(crate) use self::secret::{
    another_secret, previous_secret_has_unsettled_calls, previous_secret_needed, rotation_too_short,
};

use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    fingerprint::KeyKind,
    policy::OnDoubt,
    store::{Ended, StoreError, StoreErrorKind},
};

/// How long callers are told to wait before asking again about a running call.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long callers are told to wait when they have used up their quota.
const QUOTA_AFTER: Duration = Duration::from_secs(60);

/// How long callers are told to wait before a call in doubt is verified again.
const VERIFY_AFTER: Duration = Duration::from_secs(5);

pub(crate) fn conflict() -> Refusal {
    Refusal::new(
        ErrorKind::KeyConflict,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        "This idempotency key was already used for a different call (another tool or other \
         arguments). This call was not executed. To make it, send a new key.",
    )
}

pub(crate) fn in_progress(key: KeyKind) -> Refusal {
    Refusal::new(
        ErrorKind::KeyInProgress,
        CommitOutcome::Unknown,
        Action::Wait,
        match key {
            KeyKind::Explicit => {
                "The first call with this idempotency key has not ended: it is still running, or its \
                 server was interrupted. This call was not executed. Wait, then send the same call \
                 with the same key."
            }
            // A key that is added now would make it another call.
            KeyKind::Derived => {
                "An equal call made earlier has not ended: it is still running, or its server was \
                 interrupted. This call was not executed. Wait, then send exactly the same call \
                 again, without adding a key."
            }
        },
    )
    .with_retry_after(RETRY_AFTER)
}

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

pub(crate) fn expired() -> Refusal {
    Refusal::new(
        ErrorKind::KeyExpired,
        CommitOutcome::Unknown,
        Action::UseNewKey,
        "This idempotency key was used before and its result is no longer kept. The call was not \
         executed again. If it is meant anew, send a new key.",
    )
}

pub(crate) fn in_doubt(key: KeyKind) -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        match key {
            KeyKind::Explicit => {
                "An earlier call with this idempotency key ended without telling whether it took \
                 effect. It was not executed again. Ask the operator to look before repeating it \
                 with a new key."
            }
            KeyKind::Derived => {
                "An equal call made earlier ended without telling whether it took effect, so this \
                 one was not executed. Ask the operator to look before making it again with an \
                 idempotency key of its own."
            }
        },
    )
}

/// Whether the call took effect is not known yet; asking again may tell.
pub(crate) fn still_in_doubt(key: KeyKind) -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        match key {
            KeyKind::Explicit => {
                "An earlier call with this idempotency key ended without telling whether it took \
                 effect, and that could not be found out yet. Send the same call with the same key \
                 again to find out; do not use a new key."
            }
            KeyKind::Derived => {
                "An equal call made earlier ended without telling whether it took effect, and that \
                 could not be found out yet. Send exactly the same call again to find out, without \
                 adding a key."
            }
        },
    )
    .with_retry_after(VERIFY_AFTER)
}

pub(crate) fn too_large() -> Refusal {
    Refusal::new(
        ErrorKind::ResultTooLarge,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed and its effect is committed, but its \
         result was too large to keep. It was not executed again; do not repeat it with a new key.",
    )
}

pub(crate) fn gave_up() -> Refusal {
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "Equal calls ahead of this one ended without a result. This call was not executed. Send it \
         again with the same key.",
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

/// The handler reported success, but its transaction did not commit.
pub(crate) fn not_committed(error: StoreError) -> Refusal {
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        "the handler's transaction could not be committed"
    );
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        if error.is_transient() {
            "The call ran, but the database could not commit it this time; nothing was changed. \
             Send it again with the same key."
        } else {
            "The call ran, but its database transaction had failed; nothing was changed. It may be \
             sent again with the same key."
        },
    )
    .with_source(error)
}

pub(crate) fn commit_unknown(error: StoreError) -> Refusal {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "the outcome of a commit is unknown"
    );
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "The connection to the database was lost while the call was being committed, so it is not \
         known whether it took effect. Send it again with the same key to find out; do not use a \
         new key.",
    )
    .with_source(error)
}

/// The handler returned while something it had started still held the transaction.
#[must_use]
pub fn still_held(on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        "a handler returned while something it had started still held the transaction; the transaction will be rolled back"
    );
    if on_doubt != OnDoubt::Fail {
        return still_in_doubt(KeyKind::Explicit);
    }
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The tool returned while something it had started was still using its database \
         transaction, so the call was not committed. What is written later is rolled back. Ask the \
         operator to look before repeating it.",
    )
}

pub(crate) fn ended_by_handler(on_doubt: OnDoubt) -> Refusal {
    tracing::error!("the handler ended its transaction itself; its call is in doubt");
    if on_doubt != OnDoubt::Fail {
        return still_in_doubt(KeyKind::Explicit);
    }
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The tool ended its own database transaction, so it is not known what took effect. The \
         call will not be executed again under this key; ask the operator to look.",
    )
}

pub(crate) fn not_encoded(error: &(dyn std::error::Error + Send + Sync)) -> Refusal {
    tracing::error!(%error, "a result could not be encoded");
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        "The call ran, but its result could not be encoded, so nothing was committed.",
    )
}

/// Like [`not_encoded`], but the handler may have acted outside the database.
pub(crate) fn not_encoded_after_acting(error: &(dyn std::error::Error + Send + Sync)) -> Refusal {
    tracing::error!(%error, "a result could not be encoded; its call is in doubt");
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The call ran, but its result could not be encoded. It may have taken effect; ask the \
         operator to look before repeating it.",
    )
}

pub(crate) fn fenced(on_doubt: OnDoubt) -> Refusal {
    tracing::error!("a late attempt was fenced");
    match on_doubt {
        OnDoubt::Fail => Refusal::new(
            ErrorKind::OutcomeUnknown,
            CommitOutcome::Unknown,
            Action::AskOperator,
            "The call lost its lease and with it the right to record its result. It may have taken \
             effect; ask the operator to look before repeating it.",
        ),
        OnDoubt::Rerun | OnDoubt::Verify => Refusal::new(
            ErrorKind::OutcomeUnknown,
            CommitOutcome::Unknown,
            Action::RetrySameKey,
            "The call lost its lease and with it the right to record its result. It may have taken \
             effect; send the same call with the same key again to find out, and do not use a new \
             key.",
        ),
    }
}

/// The handler acted outside the database, and its writes in the database were then not committed.
pub(crate) fn not_committed_after_acting(error: StoreError, on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "a handler's transaction could not be committed after its outside call; its call is in doubt"
    );
    let (action, message) = match on_doubt {
        OnDoubt::Fail => (
            Action::AskOperator,
            "The call ran, but the database could not commit what it wrote. What it did elsewhere \
             may have taken effect; ask the operator to look before repeating it.",
        ),
        OnDoubt::Rerun | OnDoubt::Verify => (
            Action::RetrySameKey,
            "The call ran, but the database could not commit what it wrote. What it did elsewhere \
             may have taken effect. Send the same call with the same key again; do not use a new \
             key.",
        ),
    };
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        action,
        message,
    )
    .with_source(error)
}

/// The answer to a call that records nothing, by how its transaction ended. `None` if its own
/// result is the answer. `committing` says whether a commit was requested, `acted_outside` whether
/// the handler may have acted outside the transaction.
#[must_use]
pub fn of_unrecorded(ended: Ended, committing: bool, acted_outside: bool) -> Option<Refusal> {
    match ended {
        Ended::AsAsked(_) => None,
        Ended::Aborted(_) if !committing => None,
        Ended::Aborted(error) if acted_outside => {
            Some(not_committed_after_acting(error, OnDoubt::Fail))
        }
        Ended::Aborted(error) => Some(not_committed(error)),
        Ended::EndedByHandler => Some(ended_by_handler(OnDoubt::Fail)),
        Ended::Unknown(error) => Some(commit_unknown(error)),
        // A store returns these only for claims and leases.
        Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced => {
            Some(in_progress(KeyKind::Explicit))
        }
    }
}
