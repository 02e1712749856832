//! Completing a lease in a transaction that the store did not begin: one of another driver, or of another
//! pool, on the same database.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{Completion, Lease, StoreError};
use crate::record::Timestamp;

/// What a store does for transactions that it did not begin. See
/// [`Store::foreign_transactions`](super::Store::foreign_transactions).
///
/// # Contract
///
/// - The statement of [`completion`](Self::completion) completes the lease and its guard, or it raises an
///   error, after which its transaction cannot be committed. It does so only while the record is in
///   progress under exactly that token and the lease has not ended.
/// - From then until its transaction ends, no other attempt can take the record over.
/// - Nothing else completes a record under that token unless the engine asks for it.
pub trait ForeignTransactions: Send + Sync {
    /// The statement that completes this lease, to be run in any transaction on the store's database.
    fn completion(&self, lease: &Lease, completion: Completion) -> CompletionStatement;

    /// A statement with the same parameters that changes nothing, for calls without a lease.
    fn no_completion(&self) -> CompletionStatement;

    /// Like [`Store::renew`](super::Store::renew), for a lease that may be about to be completed. It does
    /// not wait for the transaction that does it.
    ///
    /// # Errors
    ///
    /// The same as for [`Store::renew`](super::Store::renew).
    fn renew<'a>(
        &'a self,
        lease: &'a Lease,
        period: Duration,
    ) -> BoxFuture<'a, Result<ForeignRenewal, StoreError>>;

    /// The result that was committed under this lease's token, whether it is within its retention or not.
    /// `None` if the record says nothing of the kind: the transaction was rolled back, it is still
    /// running, the attempt was fenced, or the record has been swept since.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn completed<'a>(
        &'a self,
        lease: &'a Lease,
    ) -> BoxFuture<'a, Result<Option<Completed>, StoreError>>;
}

/// How a renewal ended that may have met a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the engine must handle every answer"
)]
pub enum ForeignRenewal {
    /// The lease was extended.
    Extended,
    /// Somebody has locked the record, probably the transaction that completes it. Until that ends,
    /// nobody can take the record over.
    Locked,
    /// The lease was completed.
    Completed,
    /// The lease is lost.
    Fenced,
}

/// A result that was committed under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Completed {
    /// The encoded result. `None` if it was too large to keep, or is past its retention.
    pub response: Option<Bytes>,
    /// When it was completed.
    pub at: Timestamp,
}

impl Completed {
    /// A result that was committed at this time.
    #[must_use]
    pub const fn new(response: Option<Bytes>, at: Timestamp) -> Self {
        Self { response, at }
    }
}

/// A statement that completes an attempt in lease mode, for any driver. Run [`sql`](Self::sql) with its
/// two parameters in the transaction that has the effect, as its last statement.
///
/// It returns one row (an `integer`), or it fails with SQLSTATE `22P02` if the attempt has lost its lease.
/// In the latter case, Postgres does not let the transaction commit. The text is the same for every call,
/// so that it can be prepared once.
#[derive(Clone)]
pub struct CompletionStatement {
    sql: Arc<str>,
    attempt: String,
    result: Option<Bytes>,
}

impl CompletionStatement {
    /// A statement. Only a [`ForeignTransactions`] makes one.
    #[must_use]
    pub const fn new(sql: Arc<str>, attempt: String, result: Option<Bytes>) -> Self {
        Self {
            sql,
            attempt,
            result,
        }
    }

    /// The text, with the placeholders `$1` and `$2`.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// `$1`, of type `text`: which attempt is completed, and how long the result is kept.
    #[must_use]
    pub fn attempt(&self) -> &str {
        &self.attempt
    }

    /// `$2`, of type `bytea`: the encoded result, or `NULL` if it is too large to be kept.
    #[must_use]
    pub fn result(&self) -> Option<&[u8]> {
        self.result.as_deref()
    }
}

impl fmt::Debug for CompletionStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The result may hold secrets.
        f.debug_struct("CompletionStatement")
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
