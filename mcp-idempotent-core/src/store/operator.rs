//! For operators: what is recorded, and how a call in doubt is resolved.

use std::{fmt, future::Future, sync::Arc};

use bytes::Bytes;

use super::{Audit, Completion, Store, StoreError};
use crate::{
    fingerprint::{DownstreamKey, DownstreamSeed, Fingerprint, RecordId, Secret},
    key::{IdempotencyKey, visible_prefix},
    record::Timestamp,
    scope::{Application, Scope},
};

/// The state of a stored record, as an operator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordStatus {
    /// A lease-mode attempt holds an unexpired lease.
    InProgress,
    /// Whether the handler acted is unknown.
    InDoubt,
    /// Finished, and within its retention.
    Completed,
    /// The key is free. What is left of the record says why, and may keep the origin of the
    /// next attempt.
    Released,
    /// Past its retention, and either not swept yet or kept as a tombstone.
    Expired,
}

impl RecordStatus {
    /// The word for this status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::InDoubt => "in_doubt",
            Self::Completed => "completed",
            Self::Released => "released",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for RecordStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which records to list, oldest first.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordQuery {
    /// Only records with this status.
    pub status: Option<RecordStatus>,
    /// Only records of this tool.
    pub tool: Option<Arc<str>>,
    /// Only records of this application.
    pub application: Option<Arc<str>>,
    /// Only records of this scope.
    pub scope: Option<Arc<str>>,
    /// Only records whose key starts with this. A record keeps 8 characters of its key, so only
    /// that many are compared.
    pub key_prefix: Option<Arc<str>>,
    /// Only records after this one: the [`RecordInfo::cursor`] of the last record of the previous
    /// page.
    pub after: Option<(Timestamp, RecordId)>,
    /// How many at most; the default is 100. A full page may be followed by more, a shorter one is the
    /// last.
    pub limit: u32,
}

impl RecordQuery {
    /// As much of [`key_prefix`](Self::key_prefix) as a record keeps.
    pub(crate) fn visible_prefix(&self) -> Option<&str> {
        self.key_prefix.as_deref().map(visible_prefix)
    }
}

impl Default for RecordQuery {
    fn default() -> Self {
        Self {
            status: None,
            tool: None,
            application: None,
            scope: None,
            key_prefix: None,
            after: None,
            limit: 100,
        }
    }
}

/// What an operator can see of a record. Arguments and key are not stored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInfo {
    /// The record.
    pub id: RecordId,
    /// The record's status.
    pub status: RecordStatus,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// The tool that was called.
    pub tool: Arc<str>,
    /// Whose record it is. A store may replace unusual characters in this and in the scope.
    pub application: Option<Arc<str>>,
    /// Whose key it is.
    pub scope: Option<Arc<str>>,
    /// At most 8 characters of an explicit key.
    pub key_prefix: Option<Box<str>>,
    /// The token that a resolution has to name. This is a lease's fencing token. A record that was
    /// written in a transaction has another number here, chosen by the store.
    pub token: i64,
    /// Lease mode: the first attempt's token, which the downstream keys are made of. `None` if the
    /// next attempt is a first one.
    pub origin: Option<i64>,
    /// How many attempts there have been since the origin. An attempt that only asked the other
    /// side counts too.
    pub attempts: u32,
    /// When the first of these attempts claimed the key.
    pub created_at: Timestamp,
    /// When the lease ends or ended. Set for a record in progress, and for one in doubt after a
    /// lapse.
    pub lease_until: Option<Timestamp>,
    /// When the handler's result was recorded, or when the attempt reported that it is in doubt.
    pub completed_at: Option<Timestamp>,
    /// When the record's retention ends; unknown while it is in progress.
    pub expires_at: Option<Timestamp>,
    /// How an operator resolved it, if one did.
    pub resolved: Option<ResolvedBy>,
    /// The encoded result. Listings leave it out.
    pub response: Option<Bytes>,
}

impl RecordInfo {
    /// A record with only the fields that every record has.
    #[must_use]
    pub fn new(
        id: RecordId,
        fingerprint: Fingerprint,
        status: RecordStatus,
        tool: impl Into<Arc<str>>,
        token: i64,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            status,
            fingerprint,
            tool: tool.into(),
            application: None,
            scope: None,
            key_prefix: None,
            token,
            origin: None,
            attempts: 1,
            created_at,
            lease_until: None,
            completed_at: None,
            expires_at: None,
            resolved: None,
            response: None,
        }
    }

    /// The key that this call's attempts pass on to another system in the step with this name, so
    /// that the other side can be asked about it. `secret` is the application's. `None` if there is
    /// no such key: the call ran in a transaction, or its next attempt is a first one.
    #[must_use]
    pub fn downstream_key(&self, step: &str, secret: Option<&Secret>) -> Option<DownstreamKey> {
        let seed = DownstreamSeed::new(&self.id, &self.fingerprint, self.origin?, secret);
        Some(seed.key(step))
    }

    /// Whether this is the record of this explicit key, as far as application and scope are stored
    /// exactly.
    #[must_use]
    pub fn is_of_key(&self, key: &IdempotencyKey, secret: Option<&Secret>) -> bool {
        let (Some(application), Some(scope)) = (&self.application, &self.scope) else {
            return false;
        };
        let (application, scope) = (
            Application::new(Arc::clone(application)),
            Scope::new(Arc::clone(scope)),
        );
        RecordId::of_explicit(&application, &scope, key, secret) == self.id
    }

    /// Where the next page begins.
    #[must_use]
    pub const fn cursor(&self) -> (Timestamp, RecordId) {
        (self.created_at, self.id)
    }
}

/// What an operator found out, without the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "the three words of a resolution")]
pub enum ResolutionKind {
    /// The call took effect.
    Committed,
    /// The call took no effect, and never will.
    NotCommitted,
    /// The effect stays unknown, but running the call again is acceptable.
    Released,
}

impl ResolutionKind {
    /// The word for this resolution.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::NotCommitted => "not_committed",
            Self::Released => "released",
        }
    }

    /// The stored form.
    #[must_use]
    pub const fn to_stored(self) -> i16 {
        match self {
            Self::Committed => 1,
            Self::NotCommitted => 2,
            Self::Released => 3,
        }
    }

    /// From the stored form.
    #[must_use]
    pub const fn from_stored(stored: i16) -> Option<Self> {
        match stored {
            1 => Some(Self::Committed),
            2 => Some(Self::NotCommitted),
            3 => Some(Self::Released),
            _ => None,
        }
    }
}

/// What the record keeps of a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedBy {
    /// What was found out.
    pub kind: ResolutionKind,
    /// Who resolved it.
    pub who: Arc<str>,
    /// Why.
    pub why: Arc<str>,
    /// When, by the store's clock.
    pub at: Timestamp,
}

impl ResolvedBy {
    /// A resolution as a store keeps it.
    #[must_use]
    pub fn new(
        kind: ResolutionKind,
        who: impl Into<Arc<str>>,
        why: impl Into<Arc<str>>,
        at: Timestamp,
    ) -> Self {
        Self {
            kind,
            who: who.into(),
            why: why.into(),
            at,
        }
    }
}

/// How to resolve a call that is in doubt or still running.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must handle every resolution"
)]
pub enum Resolution {
    /// The call took effect. From now on a retry gets this result. Without a result a retry is
    /// refused as `idempotency_result_too_large`, outcome committed.
    Committed(Completion),
    /// The call took no effect, and never will. The key is free. The next attempt is the first of a
    /// new origin, with a new downstream key.
    NotCommitted,
    /// The effect stays unknown, but running the call again is acceptable. The key is free, and the
    /// next attempt has the same downstream key.
    Release,
}

impl Resolution {
    /// What it says about the effect.
    #[must_use]
    pub const fn kind(&self) -> ResolutionKind {
        match self {
            Self::Committed(_) => ResolutionKind::Committed,
            Self::NotCommitted => ResolutionKind::NotCommitted,
            Self::Release => ResolutionKind::Released,
        }
    }
}

/// What a resolution did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a guarded statement matched or it did not"
)]
pub enum Resolved {
    /// The record was resolved at this time, under a new token. An attempt that is still alive is
    /// fenced.
    Done(Timestamp),
    /// The record has changed since it was seen: it has another token, or is neither in doubt nor
    /// in progress. Nothing was changed. Look again.
    Changed,
    /// There is no such record.
    NotFound,
}

/// A store whose records an operator can inspect and resolve. Every store of this crate does this
/// as part of its [contract](crate::store#contract).
pub trait OperatorStore: Store {
    /// Lists records, oldest first, without their results. Records that have expired but are not
    /// swept yet are listed as expired.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn list(
        &self,
        query: &RecordQuery,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// Reads one record, with its result.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn show(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<RecordInfo>, StoreError>> + Send;

    /// Resolves a record that is in doubt or in progress under the token that was seen. It records
    /// who did it, when and why, and gives the record a new token.
    ///
    /// # Errors
    ///
    /// The store could not be reached. After a lost connection, the record may have been resolved.
    fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send;
}
