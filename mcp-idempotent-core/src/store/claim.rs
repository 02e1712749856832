//! A claim: what is asked for, what is granted, and how it ends.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::StoreError;
use crate::{
    fingerprint::{Fingerprint, RecordId},
    policy::OnExpired,
    record::{Record, Timestamp},
    scope::{Application, Scope},
};

/// What is being called. The set-up hook of a transaction sees this.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallInfo {
    /// The tool's name.
    pub tool: Arc<str>,
    /// Whose call it is. `None` only for a call that is not deduplicated and has no known scope; a
    /// scope is never made up.
    pub scope: Option<Scope>,
}

impl CallInfo {
    /// Prefix of the tool name in the engine's own records, which are not calls.
    pub const INTERNAL: &'static str = "mcp-idempotent/";

    pub(crate) fn internal(what: &str) -> Self {
        Self::new(format!("{}{what}", Self::INTERNAL), None)
    }

    pub(crate) fn is_internal(tool: &str) -> bool {
        tool.starts_with(Self::INTERNAL)
    }

    /// Describes a call. `scope` is a [`Scope`] or `None`.
    #[must_use]
    pub fn new(tool: impl Into<Arc<str>>, scope: impl Into<Option<Scope>>) -> Self {
        Self {
            tool: tool.into(),
            scope: scope.into(),
        }
    }
}

/// A request for the right to run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The record.
    pub id: RecordId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// What is being called. The record may keep the tool's name and the scope for operators.
    pub call: CallInfo,
    /// Whose record this is. The record may keep it for operators.
    pub application: Option<Application>,
    /// At most 8 characters of an explicit key. The record may keep them for operators.
    pub key_prefix: Option<Box<str>>,
    /// How to report an expired record.
    pub on_expired: OnExpired,
    /// Lease mode: how long the claim is honoured without renewal.
    pub lease: Duration,
    /// Lease mode: how long the record is kept once it is in doubt.
    pub in_doubt_retention: Duration,
}

impl Claim {
    /// A claim with the default treatment of expired records and the default lease.
    #[must_use]
    pub const fn new(id: RecordId, fingerprint: Fingerprint, call: CallInfo) -> Self {
        Self {
            id,
            fingerprint,
            call,
            application: None,
            key_prefix: None,
            on_expired: OnExpired::New,
            lease: crate::policy::Policy::DEFAULT_LEASE,
            in_doubt_retention: crate::policy::Policy::DEFAULT_IN_DOUBT_RETENTION,
        }
    }

    /// The name of the application.
    #[must_use]
    pub fn application(&self) -> Option<&str> {
        self.application.as_ref().map(Application::as_str)
    }

    /// The text of the scope.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.call.scope.as_ref().map(Scope::as_str)
    }
}

/// How a store answers a claim.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the engine must handle every answer"
)]
pub enum Claimed<C> {
    /// The caller has the right to run: an open transaction, or a lease.
    New(C),
    /// The key's lock is held elsewhere, probably by the same call. It proves nothing: the holder may only
    /// look for the record.
    InProgress,
    /// A different call is running elsewhere under this key.
    Conflict,
    /// There is a record, and it decides the answer.
    Found(Record),
}

impl<C> Claimed<C> {
    /// What a new claim holds. Otherwise what was found, as the answer to any other claim.
    pub(crate) fn held<D>(self) -> Result<C, Claimed<D>> {
        match self {
            Self::New(held) => Ok(held),
            Self::InProgress => Err(Claimed::InProgress),
            Self::Conflict => Err(Claimed::Conflict),
            Self::Found(record) => Err(Claimed::Found(record)),
        }
    }

    /// Turns what a new claim holds into something else.
    pub(crate) fn map<D>(self, new: impl FnOnce(C) -> D) -> Claimed<D> {
        match self {
            Self::New(held) => Claimed::New(new(held)),
            Self::InProgress => Claimed::InProgress,
            Self::Conflict => Claimed::Conflict,
            Self::Found(record) => Claimed::Found(record),
        }
    }
}

/// What a store knows about a key.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the engine must answer every finding"
)]
pub enum Inspected {
    /// There is no record, and nobody holds the key.
    NotSeen,
    /// An attempt holds the key, and there is no record yet.
    InProgress,
    /// There is a record.
    Found(Record),
}

/// A claim in lease mode: a right with an end, and the token that proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The record.
    pub id: RecordId,
    /// The fencing token.
    pub token: i64,
    /// The token of the first attempt at this call; see the [contract](super#contract), 8.
    pub origin: i64,
    /// Which attempt since the origin this is; the first is 1.
    pub attempts: u32,
}

impl Lease {
    /// The lease that a store grants to a first attempt.
    #[must_use]
    pub const fn new(id: RecordId, token: i64) -> Self {
        Self {
            id,
            token,
            origin: token,
            attempts: 1,
        }
    }

    /// The same lease for a later attempt.
    #[must_use]
    pub const fn after(self, origin: i64, attempts: u32) -> Self {
        Self {
            origin,
            attempts,
            ..self
        }
    }
}

/// The result of a guarded change of a lease's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a guarded statement matched or it did not"
)]
pub enum LeaseEnd {
    /// The record was changed as asked, at this time.
    Done(Timestamp),
    /// The record is no longer in progress under this token, or its lease has ended. Nothing was
    /// changed.
    Fenced,
}

/// A result to record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The encoded result. `None` records the completion alone: the result is too large, or not
    /// known.
    pub response: Option<Bytes>,
    /// How long to keep the result, from the moment the finishing statement runs.
    pub retention: Duration,
    /// How long to keep a tombstone after that; zero for none.
    pub tombstone: Duration,
    /// A lease of another record that must be current too. That record is completed in the same
    /// step, with the same result. If the guard is no longer current, nothing is recorded or
    /// committed, and the answer is [`LeaseEnd::Fenced`] ([`Ended::Fenced`]). An operator's
    /// resolution ignores it.
    pub guard: Option<Lease>,
    /// How long the guard's record keeps the result. `None`: as long as the call's own record.
    pub guard_retention: Option<Duration>,
}

impl Completion {
    /// A completion without a tombstone and without a guard.
    #[must_use]
    pub const fn new(response: Option<Bytes>, retention: Duration) -> Self {
        Self {
            response,
            retention,
            tombstone: Duration::ZERO,
            guard: None,
            guard_retention: None,
        }
    }

    /// How long the [guard](Self::guard)'s record keeps the result.
    #[must_use]
    pub fn retention_of_guard(&self) -> Duration {
        self.guard_retention.unwrap_or(self.retention)
    }
}

/// How to end a transaction.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must handle every way to end"
)]
pub enum End {
    /// Commit the handler's writes and this record together.
    Commit(Completion),
    /// Commit the handler's writes without a record (an unprotected call).
    CommitUnrecorded,
    /// Roll back the handler's writes, then record this.
    RollBackAndRecord(Completion),
    /// Roll back the handler's writes and record nothing.
    RollBack,
    /// Commit the handler's writes and complete this lease together. For a transaction that was
    /// begun without a claim while the lease holds the key.
    Complete(Lease, Completion),
}

/// How a transaction ended.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the engine must answer every ending"
)]
pub enum Ended {
    /// As asked. Callers that joined are told this time. A store that does not ask its database
    /// each time may be off by some milliseconds; the record has the database's own time.
    AsAsked(Timestamp),
    /// Another call's record won. Nothing of this call was committed.
    Lost(Record),
    /// Another call now holds the key. Nothing of this call was committed or recorded.
    LostInProgress,
    /// The handler's writes were rolled back before they could be committed: a database error had
    /// aborted the transaction, or the database refused to serialise it. Nothing is recorded.
    Aborted(StoreError),
    /// The handler ended the transaction itself. What became of its writes is unknown. If the call
    /// had a claim, the key is in doubt.
    EndedByHandler,
    /// The connection was lost during the commit, and the outcome could not be found out.
    Unknown(StoreError),
    /// The record is no longer under the lease's token, or the completion's guard is lost. Nothing
    /// of this call was committed.
    Fenced,
}
