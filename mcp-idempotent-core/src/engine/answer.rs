//! What the engine answers, and the sentences that go with it.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    fingerprint::{Identity, KeyKind},
    policy::{InvalidPolicy, OnDoubt},
    record::{Record, RecordState, Timestamp},
    store::{StoreError, StoreErrorKind},
};

/// How long a caller is told to wait before it asks again for a call that still runs.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long before the other side is asked again about a call in doubt.
const VERIFY_AFTER: Duration = Duration::from_secs(5);

/// The answer to one call.
#[derive(Debug, Clone)]
#[expect(clippy::exhaustive_enums, reason = "a caller must handle every answer")]
pub enum Answer {
    /// The handler ran for this caller: give it the handler's own result.
    Executed,
    /// The result of an earlier or a concurrent call.
    Replayed(Replay),
    /// No result.
    Refused(Refusal),
}

/// A result that this call did not make itself.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Replay {
    /// The bytes that [`HandlerResult::encode`](crate::HandlerResult::encode) made.
    pub response: Bytes,
    /// When it was recorded; `None` for an intermediate round, which is not recorded.
    pub at: Option<Timestamp>,
    /// Whether this call waited for a running one, rather than found a record.
    pub joined: bool,
}

/// What a record means for a call.
pub(super) enum Decision {
    Answer(Answer),
    /// The same call runs elsewhere, under a lease.
    InProgress,
}

pub(super) fn decide(
    record: Record,
    identity: &Identity,
    on_doubt: OnDoubt,
    joined: bool,
) -> Decision {
    // An expired record says nothing about what was asked, so it comes before the fingerprint.
    if matches!(record.state, RecordState::Expired) {
        return Decision::Answer(Answer::Refused(expired()));
    }
    if !identity.is_of(record.fingerprint) {
        return Decision::Answer(Answer::Refused(conflict()));
    }
    Decision::Answer(match record.state {
        RecordState::InProgress { .. } => return Decision::InProgress,
        RecordState::Completed {
            response: Some(response),
            at,
        } => Answer::Replayed(Replay {
            response,
            at: Some(at),
            joined,
        }),
        RecordState::Completed { response: None, .. } => Answer::Refused(too_large()),
        RecordState::InDoubt { .. } => Answer::Refused(match on_doubt {
            OnDoubt::Fail => in_doubt(identity.kind),
            // The policy knows a way out, and it begins with another call.
            OnDoubt::Rerun | OnDoubt::Verify => still_in_doubt(),
        }),
        RecordState::Expired => Answer::Refused(expired()),
    })
}

pub(super) fn conflict() -> Refusal {
    Refusal::new(
        ErrorKind::KeyConflict,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        "This idempotency key was already used for a different call (another tool or other \
         arguments). This call was not executed. To make it, send a new key.",
    )
}

pub(super) fn in_progress() -> Refusal {
    Refusal::new(
        ErrorKind::KeyInProgress,
        CommitOutcome::Unknown,
        Action::Wait,
        "The first call with this idempotency key has not ended: it is still running, or its server \
         was interrupted. This call was not executed. Wait, then send the same call with the same \
         key.",
    )
    .with_retry_after(RETRY_AFTER)
}

pub(super) fn called_from_itself() -> Refusal {
    Refusal::new(
        ErrorKind::KeyInProgress,
        CommitOutcome::NotCommitted,
        Action::UseNewKey,
        "This call was made from inside the handler of the very call that holds this idempotency \
         key, so it would wait for itself. It was not executed. A nested call needs a key of its \
         own.",
    )
}

fn expired() -> Refusal {
    Refusal::new(
        ErrorKind::KeyExpired,
        CommitOutcome::Unknown,
        Action::UseNewKey,
        "This idempotency key was used before and its result is no longer kept. The call was not \
         executed again. If it is meant anew, send a new key.",
    )
}

fn in_doubt(key: KeyKind) -> Refusal {
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
pub(super) fn still_in_doubt() -> Refusal {
    Refusal::new(
        ErrorKind::OutcomeUnknown,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        "An earlier call with this idempotency key ended without telling whether it took effect, \
         and that could not be found out yet. Send the same call with the same key again to find \
         out; do not use a new key.",
    )
    .with_retry_after(VERIFY_AFTER)
}

fn too_large() -> Refusal {
    Refusal::new(
        ErrorKind::ResultTooLarge,
        CommitOutcome::Committed,
        Action::AskOperator,
        "The call with this idempotency key was executed and its effect is committed, but its \
         result was too large to keep. It was not executed again; do not repeat it with a new key.",
    )
}

pub(super) fn gave_up() -> Refusal {
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::RetrySameKey,
        "Equal calls ahead of this one ended without a result. This call was not executed. Send it \
         again with the same key.",
    )
    .with_retry_after(RETRY_AFTER)
}

pub(super) fn too_many_waiting() -> Refusal {
    Refusal::new(
        ErrorKind::TooManyWaiting,
        CommitOutcome::Unknown,
        Action::Wait,
        "Too many calls already wait for a running call. This one was not executed. Wait, then \
         send it again with the same key.",
    )
    .with_retry_after(RETRY_AFTER)
}

pub(super) fn lease_too_short(tool: &str, lease: Duration, limit: Duration) -> Refusal {
    tracing::error!(
        tool,
        ?lease,
        ?limit,
        "the lease must be more than three times the store's limit on transactions; lengthen the tool's lease, or shorten the limit (`SqliteStoreBuilder::with_transaction_limit`)"
    );
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        "The server's lease is too short for its store, so the call was not executed. The server's \
         log names the remedy.",
    )
}

pub(super) fn invalid_policy(error: InvalidPolicy) -> Refusal {
    tracing::error!(%error, "the tool's policy cannot hold");
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        "The server's rules for this tool contradict each other, so the call was not executed. The \
         server's log names the remedy.",
    )
    .with_source(error)
}

pub(super) fn another_secret() -> Refusal {
    tracing::error!(
        "the application's records were made under another secret than this engine's, or under none; give it the same, replace it with `with_previous_secret`, or name another application"
    );
    misconfigured(
        "The server's secret is not the one of its idempotency records, so the call was not \
         executed. The server's log names the remedy.",
    )
}

pub(super) fn previous_secret_needed() -> Refusal {
    tracing::error!(
        "records that were made under the previous secret are still kept; go on with `with_previous_secret` until one retention has passed since the last process without it ended"
    );
    misconfigured(
        "The server's secret was replaced too early for its idempotency records, so the call was \
         not executed. The server's log names the remedy.",
    )
}

pub(super) fn rotation_too_short(tool: &str, kept: Duration, period: Duration) -> Refusal {
    tracing::error!(
        tool,
        ?kept,
        ?period,
        "the tool's records are kept for longer than its secret's replacement takes; say so with `with_rotation_period`"
    );
    misconfigured(
        "The server's secret is being replaced in less time than this tool's results are kept, so \
         the call was not executed. The server's log names the remedy.",
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

/// The store failed before the handler ran.
pub(super) fn store_unavailable(error: StoreError) -> Refusal {
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
            "idempotency store failed before the handler ran"
        );
    }
    refusal.with_source(error)
}

/// The handler reported success, and its transaction did not commit.
pub(super) fn not_committed(error: StoreError) -> Refusal {
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

pub(super) fn commit_unknown(error: StoreError) -> Refusal {
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

pub(super) fn still_held(on_doubt: OnDoubt) -> Refusal {
    tracing::error!(
        "a handler returned while something it started still held the transaction; it will be rolled back"
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

pub(super) fn ended_by_handler(on_doubt: OnDoubt) -> Refusal {
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
}

pub(super) fn encode_failed(error: Box<dyn std::error::Error + Send + Sync>) -> Refusal {
    tracing::error!(%error, "a result could not be encoded");
    Refusal::new(
        ErrorKind::NotCommitted,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        "The call ran, but its result could not be encoded, so nothing was committed.",
    )
}

pub(super) fn fenced(on_doubt: OnDoubt) -> Refusal {
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

/// The handler acted outside, and what it wrote then was not committed.
pub(super) fn not_committed_after_acting(error: StoreError, on_doubt: OnDoubt) -> Refusal {
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
