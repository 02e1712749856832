//! The operator's hand: what is recorded, and what becomes of a call in doubt.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{Completion, Store, StoreError};
use crate::{fingerprint::RecordId, record::Timestamp};

/// Where a stored record stands, as an operator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordStatus {
    /// A lease-mode attempt holds an unexpired lease.
    InProgress,
    /// Whether the handler acted is unknown.
    InDoubt,
    /// Finished, and within its retention.
    Completed,
    /// The key is free; what is left of the record says why, and where its next attempt comes from.
    Released,
    /// Past its retention, not swept yet or kept as a tombstone.
    Expired,
}

impl RecordStatus {
    /// The word for it.
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
    /// Only those that stand here.
    pub status: Option<RecordStatus>,
    /// Only those of this tool.
    pub tool: Option<Arc<str>>,
    /// Only those after this one: the [`RecordInfo::cursor`] of the last record of the page before.
    pub after: Option<(Timestamp, RecordId)>,
    /// How many at most; 100 unless said otherwise. A full page may not be the last one.
    pub limit: u32,
}

impl Default for RecordQuery {
    fn default() -> Self {
        Self {
            status: None,
            tool: None,
            after: None,
            limit: 100,
        }
    }
}

/// What an operator can see of a record. Neither the scope, nor the arguments, nor the key are kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInfo {
    /// The record.
    pub id: RecordId,
    /// Where it stands.
    pub status: RecordStatus,
    /// The tool that was called.
    pub tool: Arc<str>,
    /// At most 8 characters of an explicit key.
    pub key_prefix: Option<Box<str>>,
    /// The token that a resolution has to name. A lease's fencing token; for a record that was
    /// written in a transaction it is what the store has in its place.
    pub token: i64,
    /// How many attempts there were since its origin. An attempt that only asked the other side
    /// counts.
    pub attempts: u32,
    /// When the first of them claimed the key.
    pub created_at: Timestamp,
    /// When the lease ends, or ended: in progress, and in doubt after a lapse.
    pub lease_until: Option<Timestamp>,
    /// When the handler's result was recorded, or the attempt said that it is in doubt.
    pub completed_at: Option<Timestamp>,
    /// When the record is past its retention; unknown while it is in progress.
    pub expires_at: Option<Timestamp>,
    /// How an operator resolved it, if one did.
    pub resolved: Option<ResolvedBy>,
    /// The encoded result; listings leave it out.
    pub response: Option<Bytes>,
}

impl RecordInfo {
    /// A record without what only some have.
    #[must_use]
    pub fn new(
        id: RecordId,
        status: RecordStatus,
        tool: impl Into<Arc<str>>,
        token: i64,
        created_at: Timestamp,
    ) -> Self {
        Self {
            id,
            status,
            tool: tool.into(),
            key_prefix: None,
            token,
            attempts: 1,
            created_at,
            lease_until: None,
            completed_at: None,
            expires_at: None,
            resolved: None,
            response: None,
        }
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
    /// It took effect.
    Committed,
    /// It took no effect, and will take none.
    NotCommitted,
    /// Nothing is said of the effect: a repeat is acceptable.
    Released,
}

impl ResolutionKind {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::NotCommitted => "not_committed",
            Self::Released => "released",
        }
    }

    /// As stored.
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

/// What is kept of a resolution, in the record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedBy {
    /// What was found out.
    pub kind: ResolutionKind,
    /// Who says so.
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

/// What is to become of a call that is in doubt, or that still runs.
#[derive(Debug, Clone)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must handle every resolution"
)]
pub enum Resolution {
    /// It took effect: from now on a retry gets this result; without one it is refused as
    /// `idempotency_result_too_large`, outcome committed.
    Committed(Completion),
    /// It took no effect and will take none: the key is free, and the next attempt is the first of
    /// a new origin, with a new downstream key.
    NotCommitted,
    /// Nothing is said of the effect, a repeat is acceptable: the key is free, and the next attempt
    /// has the same downstream key.
    Release,
}

impl Resolution {
    /// What it says of the effect.
    #[must_use]
    pub const fn kind(&self) -> ResolutionKind {
        match self {
            Self::Committed(_) => ResolutionKind::Committed,
            Self::NotCommitted => ResolutionKind::NotCommitted,
            Self::Release => ResolutionKind::Released,
        }
    }
}

/// Who resolves a record, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// Who.
    pub who: Arc<str>,
    /// Why.
    pub why: Arc<str>,
    /// How long the trail of a freed key is kept, if it is not claimed anew. A completed record
    /// keeps it for its own retention.
    pub kept: Duration,
}

/// A resolution needs a name and a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidAudit;

impl fmt::Display for InvalidAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a resolution says who and why, each in 1 to 1000 characters without U+0000; an empty one says nothing",
        )
    }
}

impl std::error::Error for InvalidAudit {}

impl Audit {
    /// How long the trail of a freed key is kept: 90 days.
    pub const DEFAULT_KEPT: Duration = Duration::from_secs(90 * 24 * 60 * 60);
    const LONGEST: usize = 1000;

    /// Says who, and why.
    ///
    /// # Errors
    ///
    /// One of them is empty, longer than 1000 characters, or contains U+0000.
    pub fn new(who: impl Into<Arc<str>>, why: impl Into<Arc<str>>) -> Result<Self, InvalidAudit> {
        let (who, why) = (who.into(), why.into());
        for said in [&who, &why] {
            let length = said.chars().count();
            if said.trim().is_empty() || length > Self::LONGEST || said.contains('\0') {
                return Err(InvalidAudit);
            }
        }
        Ok(Self {
            who,
            why,
            kept: Self::DEFAULT_KEPT,
        })
    }
}

/// What a resolution did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a guarded statement matched or it did not"
)]
pub enum Resolved {
    /// The record is resolved, at this moment, under a new token: an attempt that is still alive
    /// is fenced.
    Done(Timestamp),
    /// The record is no longer as it was seen: another token, or neither in doubt nor in
    /// progress. Nothing was changed; look again.
    Changed,
    /// There is no such record.
    NotFound,
}

/// A store whose records an operator can look at and resolve. Part of the
/// [contract](crate::store#contract) of every store of this crate.
pub trait OperatorStore: Store {
    /// Lists records, oldest first, without their results. Records that are expired and not swept
    /// are listed as such.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    fn list(
        &self,
        query: &RecordQuery,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// One record, with its result.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    fn show(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<RecordInfo>, StoreError>> + Send;

    /// Resolves a record that is in doubt, or in progress, under the token that was seen, and writes
    /// down who did it, when and why. The record gets a new token.
    ///
    /// # Errors
    ///
    /// The store could not be asked; after a lost connection the record may be resolved.
    fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send;
}
