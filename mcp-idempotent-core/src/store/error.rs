//! What went wrong in a store.

use std::{error::Error as StdError, fmt, sync::Arc};

use crate::error::CommitOutcome;

/// What kind of failure a store had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database cannot be reached, or no connection became free in time.
    Unavailable,
    /// Other callers kept the store busy for longer than the bound.
    Busy,
    /// The database refused to serialise the transaction, or broke a deadlock. A retry may succeed.
    Conflict,
    /// The handler's transaction was aborted by a database error that the handler did not report.
    Aborted,
    /// Tables, rights or settings are missing or wrong.
    Misconfigured,
    /// Anything else.
    Other,
}

/// A store's error. It is opaque, and carries its [kind](StoreErrorKind), its source, and whether
/// anything may have been committed.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    outcome: CommitOutcome,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error that left nothing behind.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: CommitOutcome::NotCommitted,
            message: message.into(),
            source: None,
        }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Sets what is known about the commit.
    #[must_use]
    pub fn with_outcome(mut self, outcome: CommitOutcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// What kind of failure it was.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether anything may have been committed.
    #[must_use]
    pub const fn outcome(&self) -> CommitOutcome {
        self.outcome
    }

    /// Whether a retry may succeed without any change to the set-up.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Busy | StoreErrorKind::Conflict
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
