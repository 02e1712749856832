//! Refusals of calls whose handler ran.

use crate::{
    answer::{in_progress, still_in_doubt},
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    policy::OnDoubt,
    store::{Ended, StoreError},
};

/// The handler reported success, but its transaction did not commit.
pub(crate) fn not_committed(error: StoreError) -> Refusal {
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        "the handler's transaction could not be committed"
    );
    let (message, without_key) = if error.is_transient() {
        (
            "The call ran, but the database could not commit it this time; nothing was changed. \
             Send it again with the same key.",
            "The call ran, but the database could not commit it this time; nothing was changed. \
             Send exactly the same call again.",
        )
    } else {
        (
            "The call ran, but its database transaction had failed; nothing was changed. It may be \
             sent again with the same key.",
            "The call ran, but its database transaction had failed; nothing was changed. It may be \
             sent again, exactly as it is.",
        )
    };
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        message,
    )
    .with_message_without_key(without_key)
    .with_source(error)
}

/// The session of the handler's transaction ended while the handler ran, before a commit was sent.
#[must_use]
pub fn session_ended() -> Refusal {
    tracing::warn!("the session of a handler's transaction ended; nothing was committed");
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "The database ended the call's session while the tool ran; nothing was changed. Send the call \
         again with the same key.",
    )
    .with_message_without_key(
        "The database ended the call's session while the tool ran; nothing was changed. Send exactly \
         the same call again.",
    )
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
    .with_message_without_key(
        "The connection to the database was lost while the call was being committed, so it is not \
         known whether it took effect. Send exactly the same call again to find out, without adding \
         a key.",
    )
    .with_source(error)
}

/// Like [`commit_unknown`], for a call that records nothing: a retry would not find out.
fn commit_unknown_unrecorded(error: StoreError) -> Refusal {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "the outcome of the commit of an unprotected call is unknown"
    );
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The connection to the database was lost while the call was being committed, so it is not \
         known whether it took effect. Look before repeating it.",
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
        return still_in_doubt();
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
        return still_in_doubt();
    }
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::AskOperator,
        "The tool ended its own database transaction, so it is not known what took effect. The \
         call will not be executed again under this key; ask the operator to look.",
    )
    .with_message_without_key(
        "The tool ended its own database transaction, so it is not known what took effect. Ask the \
         operator to look before repeating it.",
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
pub(crate) fn not_encoded_after_acting(
    error: &(dyn std::error::Error + Send + Sync),
    on_doubt: OnDoubt,
) -> Refusal {
    tracing::error!(%error, "a result could not be encoded; its call is in doubt");
    after_acting(
        ErrorKind::OutcomeUnknown,
        "The call ran, but its result could not be encoded. It may have taken effect.",
        on_doubt,
    )
}

pub(crate) fn fenced(on_doubt: OnDoubt) -> Refusal {
    tracing::error!("a late attempt was fenced");
    after_acting(
        ErrorKind::OutcomeUnknown,
        "The server lost track of this call while it ran, so its result is not recorded. It may have \
         taken effect.",
        on_doubt,
    )
}

/// The handler acted outside the database, and its writes in the database were then not committed.
pub(crate) fn not_committed_after_acting(error: StoreError, on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "a handler's transaction could not be committed after its outside call; its call is in doubt"
    );
    acted_in_vain(on_doubt).with_source(error)
}

/// The handler asked for its completion, and returned a result without having committed it.
pub(crate) fn not_completed(on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        "a handler returned a result, but the transaction that was to complete its call did not commit; its call is in doubt. Does it run the completion's statement in the transaction of its effect, and commit that?"
    );
    after_acting(
        ErrorKind::OutcomeUnknown,
        "The tool reported success, but its result was not committed together with its effect. It may \
         have taken effect.",
        on_doubt,
    )
}

/// The session of the handler's transaction ended while the handler ran, which may have acted outside the
/// database before.
#[must_use]
pub fn session_ended_after_acting(on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        "the session of a handler's transaction ended after its outside call; its call is in doubt"
    );
    acted_in_vain(on_doubt)
}

fn acted_in_vain(on_doubt: OnDoubt) -> Refusal {
    after_acting(
        ErrorKind::OutcomeUnknown,
        "The call ran, but the database could not commit what it wrote. What it did elsewhere may have \
         taken effect.",
        on_doubt,
    )
}

/// The call may have taken effect. What its caller is to do is up to the policy, and is said after
/// `what`, which is a sentence or two.
#[must_use]
pub fn after_acting(kind: ErrorKind, what: &str, on_doubt: OnDoubt) -> Refusal {
    let refusal = |action, what_to_do| {
        let message = format!("{what} {what_to_do}");
        Refusal::new(kind, CommitOutcome::Unknown, action, message)
    };
    match on_doubt {
        OnDoubt::Fail => refusal(
            Action::AskOperator,
            "Ask the operator to look before repeating it.",
        ),
        OnDoubt::Rerun | OnDoubt::Verify => refusal(
            Action::RetrySameKey,
            "Send the same call with the same key again to find out; do not use a new key.",
        )
        .with_message_without_key(format!(
            "{what} Send exactly the same call again to find out, without adding a key."
        )),
    }
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
        Ended::Unknown(error) => Some(commit_unknown_unrecorded(error)),
        // A store returns these only for claims and leases.
        Ended::Lost(_) | Ended::LostInProgress | Ended::Fenced => Some(in_progress()),
    }
}
