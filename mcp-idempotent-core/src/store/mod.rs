//! Where records live: the [`Store`] trait, its contract, and the stores.
//!
//! # Contract
//!
//! A store keeps at most one record for each [`RecordId`], whatever the mode. It decides all times
//! (ends of leases, expiry) by **its own clock**, never by the application's.
//!
//! 1. **A key is claimed once.** Of any number of concurrent [`Store::claim`] and
//!    [`TransactionStore::begin`] calls for one id, in any number of processes that share the
//!    store, at most one gets [`Claimed::New`] until that attempt has ended.
//! 2. **A claim reports and never waits long.** If another attempt holds the key, the answer is
//!    [`Claimed::InProgress`] (same fingerprint), [`Claimed::Conflict`] (another fingerprint) or
//!    [`Claimed::Found`], and the engine polls. A store that must queue (a single writer) bounds
//!    its queue and answers [`StoreErrorKind::Busy`].
//! 3. **Expired is absent.** A record past its expiry is never reported, swept or not, except as
//!    [`RecordState::Expired`] to a claim with [`OnExpired::Refuse`]. It does not block a new
//!    claim. Replacing it never lets two racing claims both succeed.
//! 4. **Fencing.** [`Lease::token`] grows and is never used twice, even after the record was
//!    released or swept. [`Store::renew`], [`Store::complete`], [`Store::release`],
//!    [`Store::abandon`] and [`End::Complete`] change a record only while it is in progress under
//!    exactly that token and its lease has not ended. Otherwise they answer [`LeaseEnd::Fenced`]
//!    ([`Ended::Fenced`]) and change nothing.
//!    One exception: the engine repeats a completion after an error that may have followed its
//!    commit. If the record is completed under that token with that very result, a store may answer
//!    the second with [`LeaseEnd::Done`] and the time of the first.
//! 5. **A lapsed lease is in doubt.** It is reported as [`RecordState::InDoubt`] and is never
//!    claimed anew. A result that was written in time and whose commit outlasts the lease is no
//!    lapse: until the commit has ended, the record is in progress, and
//!    [`Store::complete`] fails rather than call the attempt fenced.
//!    Only [`Store::take_over`] makes a call in doubt run again. It is kept for
//!    [`Claim::in_doubt_retention`] from the end of its lease. After that it is absent, like any
//!    expired record.
//! 6. **Record and effect are one.** [`TransactionStore::end`] with [`End::Commit`] makes the
//!    handler's writes and the record durable together, or neither. It reports success only after
//!    the database has confirmed exactly that.
//! 7. **Bytes stay bytes.** A response is returned exactly as it was given.
//! 8. **An origin outlives its attempts.** [`Lease::origin`] is the first attempt's token. It stays
//!    the same when another attempt takes over, and when a key is released with a time to keep its
//!    origin and is claimed again within that time. A record that has expired, or was released
//!    without such a time, leaves no origin.
//! 9. **A guard and its record are one.** A completion may name a [guard](Completion::guard), the
//!    lease of another record. Then both get the result in one step, or neither does. Each is
//!    kept for a [time of its own](Completion::guard_retention).
//! 10. **Dropping is safe.** Dropping a transaction rolls it back. Dropping the future of any
//!     method at any await point leaves no pooled connection inside a transaction.

mod audit;
mod claim;
mod error;
mod foreign;
pub mod memory;
mod operator;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::{future::Future, ops::DerefMut, time::Duration};

use futures_util::future::BoxFuture;

pub use self::{
    audit::{Audit, InvalidAudit},
    claim::{CallInfo, Claim, Claimed, Completion, End, Ended, Inspected, Lease, LeaseEnd},
    error::{StoreError, StoreErrorKind},
    foreign::{Completed, CompletionStatement, ForeignRenewal, ForeignTransactions},
    operator::{
        OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind, Resolved,
        ResolvedBy,
    },
};
use crate::record::Record;
#[cfg(doc)]
use crate::{fingerprint::RecordId, policy::OnExpired, record::RecordState};

/// Who can see a store's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "it decides whether `with_one_caller` is allowed"
)]
pub enum Reach {
    /// This process only.
    Process,
    /// Processes on this machine.
    Machine,
    /// Any number of machines.
    Network,
}

/// Keeps records. See the [contract](self#contract).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an idempotency store",
    note = "use `MemoryStore`, `SqliteStore`, `PostgresStore` or `RedisStore`, or implement `Store` and run the conformance suite"
)]
pub trait Store: Send + Sync + 'static {
    /// Who can see these records.
    fn reach(&self) -> Reach;

    /// The longest time that a handler may hold a transaction. `Some` only in a store whose open
    /// transactions block all other writes, including renewals of leases. The engine bounds
    /// handlers by it, and refuses a lease that is not more than three times as long.
    fn transaction_limit(&self) -> Option<Duration> {
        None
    }

    /// Reads a record without claiming it. An expired record gives `None`, or
    /// [`RecordState::Expired`] if the claim asks for it.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn look_up(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// Like [`look_up`](Self::look_up), but also certain about running attempts: it returns
    /// [`Inspected::NotSeen`] only after it has seen that the key is free. It takes no claim, and
    /// never makes a concurrent claim fail.
    ///
    /// The default is enough for a store whose attempts are all visible in its records (lease mode
    /// only).
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn inspect(&self, claim: &Claim) -> impl Future<Output = Result<Inspected, StoreError>> + Send {
        async move {
            Ok(match self.look_up(claim).await? {
                Some(record) => Inspected::Found(record),
                None => Inspected::NotSeen,
            })
        }
    }

    /// Lease mode: makes a durable claim, before the handler starts.
    ///
    /// # Errors
    ///
    /// The store could not be reached. No claim was made, unless the error is a lost connection:
    /// then there may be a claim, which will lapse into doubt.
    fn claim(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Claimed<Lease>, StoreError>> + Send;

    /// Lease mode: claims a call in doubt under a new token. `token` is the token of the attempt
    /// that left it in doubt, and the fingerprint must be the same. The attempt that held `token`
    /// is fenced. Returns `None`, and changes nothing, if the record is not (or no longer) in doubt
    /// under that token.
    ///
    /// The claim is as durable as one by [`claim`](Self::claim).
    ///
    /// # Errors
    ///
    /// The same as for [`claim`](Self::claim).
    fn take_over(
        &self,
        claim: &Claim,
        token: i64,
    ) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// Lease mode: extends the lease to this long from now. A lease that has ended is not revived.
    ///
    /// # Errors
    ///
    /// The store could not be reached. The lease ends when it would have ended, unless the renewal
    /// did happen.
    fn renew(
        &self,
        lease: &Lease,
        period: Duration,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: records the result.
    ///
    /// # Errors
    ///
    /// The store could not be reached. The record stays in progress until its lease ends, unless it
    /// was completed after all.
    fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: gives the claim back, so that the key is free. A claim of the key within
    /// `keep_origin` is another attempt of the same origin. Zero forgets the origin at once.
    ///
    /// # Errors
    ///
    /// The same as for [`complete`](Self::complete).
    fn release(
        &self,
        lease: &Lease,
        keep_origin: Duration,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: says that the attempt ended with an unknown outcome. The record is in doubt from
    /// now on.
    ///
    /// # Errors
    ///
    /// The same as for [`complete`](Self::complete).
    fn abandon(&self, lease: &Lease) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: what this store does for transactions that it did not begin. `None` if a lease can only be
    /// completed through the store itself.
    fn foreign_transactions(&self) -> Option<&dyn ForeignTransactions> {
        None
    }

    /// Whether a call that was first claimed longer ago than `age` is in progress or in doubt.
    /// Records of the engine's own ([`CallInfo::INTERNAL`]) do not count.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    fn has_unsettled(&self, age: Duration)
    -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes up to `limit` records past their retention. It never removes a record in progress,
    /// or one in doubt that is within its own retention. Returns how many records it removed or
    /// reduced to a tombstone.
    ///
    /// # Errors
    ///
    /// The store could not be reached. What was removed stays removed.
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Like [`sweep`](Self::sweep), for a sweep that runs regularly. It may look at only part of
    /// the records, if the next ones look at the rest.
    ///
    /// # Errors
    ///
    /// The same as for [`sweep`](Self::sweep).
    fn sweep_part(&self, limit: u32) -> impl Future<Output = Result<u64, StoreError>> + Send {
        self.sweep(limit)
    }
}

/// A store whose record commits together with the handler's writes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no transactions, so a handler cannot take one by `&mut`",
    note = "use `SqliteStore` or `PostgresStore`, or remove the `&mut` parameter and say with `on_error` what an error means"
)]
pub trait TransactionStore: Store {
    /// What the handler is given as `&mut`.
    type Connection: Send + 'static;

    /// An open transaction. Dropping it rolls back.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Claims the key and opens the transaction that the handler writes through. Without a claim
    /// the call is unprotected, and the answer is always [`Claimed::New`].
    ///
    /// # Errors
    ///
    /// The store could not be reached, or stayed busy. The handler has not run, and nothing was
    /// changed.
    fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> impl Future<Output = Result<Claimed<Self::Transaction>, StoreError>> + Send;

    /// Resolves when the session of an open transaction is seen to have ended while its handler
    /// still runs. The handler's writes are then lost. `None` if a transaction cannot end by
    /// itself.
    fn session_over(&self, transaction: &Self::Transaction) -> Option<BoxFuture<'static, ()>> {
        let _ = transaction;
        None
    }

    /// Ends a transaction. `claim` is the claim it was begun with. It never fails: every failure is
    /// a variant of [`Ended`].
    fn end(
        &self,
        transaction: Self::Transaction,
        claim: Option<&Claim>,
        end: End,
    ) -> impl Future<Output = Ended> + Send;
}
