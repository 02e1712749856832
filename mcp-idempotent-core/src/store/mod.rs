//! Where records live: the [`Store`] trait, its contract, and the stores.
//!
//! # Contract
//!
//! A store keeps at most one record for a [`RecordId`], whatever the mode, and decides all times
//! (lease ends, expiry) by **its own clock**, never the application's.
//!
//! 1. **A key is claimed once.** Of any number of concurrent [`Store::claim`] and
//!    [`TransactionStore::begin`] calls for one id, in any number of processes that share the
//!    store, at most one is answered [`Claimed::New`] until that attempt has ended.
//! 2. **A claim reports, it never waits long.** What another attempt holds is
//!    [`Claimed::InProgress`] (the same fingerprint), [`Claimed::Conflict`] (another one) or
//!    [`Claimed::Found`]; the engine polls. A store that has to queue
//!    (a single writer) bounds the queue and answers [`StoreErrorKind::Busy`].
//! 3. **Expired is absent.** A record past its expiry is never reported, swept or not, except as
//!    [`RecordState::Expired`] to a claim with [`OnExpired::Refuse`]. It neither blocks a new
//!    claim nor is overwritten in a way that lets two racing claims both succeed.
//! 4. **Fencing.** [`Lease::token`] grows and is never used twice, also after the record was
//!    released or swept. [`Store::renew`], [`Store::complete`], [`Store::release`],
//!    [`Store::abandon`] and [`End::Complete`] change a record only while it is in progress under
//!    that very token and its lease has not ended; otherwise they answer [`LeaseEnd::Fenced`]
//!    ([`Ended::Fenced`]) and change nothing.
//! 5. **A lapsed lease is in doubt.** It is reported as [`RecordState::InDoubt`] and is never
//!    claimed anew. [`Store::take_over`] alone makes it run again. It is kept for
//!    [`Claim::in_doubt_retention`] from the end of its lease, then it is absent as any expired
//!    record is.
//! 6. **Record and effect are one.** [`TransactionStore::end`] with [`End::Commit`] makes the
//!    handler's writes and the record durable together, or neither. A success is reported only
//!    after the database has confirmed exactly that.
//! 7. **Bytes stay bytes.** A response is returned as it was given.
//! 8. **An origin outlives its attempts.** [`Lease::origin`] is the first attempt's token. It
//!    stays when another attempt takes over, and when the key is released to be kept and claimed
//!    anew before that has passed. A record that expired, or was forgotten, leaves none.
//! 9. **Dropping is safe.** Dropping a transaction rolls it back. Dropping the future of any
//!    method at any await point leaves no pooled connection inside a transaction.

mod error;
pub mod memory;
mod operator;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::{future::Future, ops::DerefMut, sync::Arc, time::Duration};

use bytes::Bytes;

pub use self::{
    error::{StoreError, StoreErrorKind},
    operator::{
        Audit, InvalidAudit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution,
        ResolutionKind, Resolved, ResolvedBy,
    },
};
#[cfg(doc)]
use crate::record::RecordState;
use crate::{
    fingerprint::{Fingerprint, RecordId},
    policy::OnExpired,
    record::{Record, Timestamp},
    scope::Scope,
};

/// Who else can see a store's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "whether one caller may be said of a server rests on it"
)]
pub enum Reach {
    /// This process only.
    Process,
    /// Processes on this machine.
    Machine,
    /// Any number of machines.
    Network,
}

/// What is being called; seen by the set-up hook of a transaction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallInfo {
    /// The tool's name.
    pub tool: Arc<str>,
    /// Whose call it is. `None` only in a call that is not deduplicated and for which nobody said
    /// whose calls these are; never an invented one.
    pub scope: Option<Scope>,
}

impl CallInfo {
    /// Describes a call, of a [`Scope`] or of `None`.
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
    /// What is asked.
    pub fingerprint: Fingerprint,
    /// What is being called. The tool's name may be kept in the record, the scope may not.
    pub call: CallInfo,
    /// At most 8 characters of an explicit key, which may be kept for operators.
    pub key_prefix: Option<Box<str>>,
    /// How an expired record is to be reported.
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
            key_prefix: None,
            on_expired: OnExpired::New,
            lease: crate::policy::Policy::DEFAULT_LEASE,
            in_doubt_retention: crate::policy::Policy::DEFAULT_IN_DOUBT_RETENTION,
        }
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
    /// The very same call runs elsewhere.
    InProgress,
    /// Another call runs under this key elsewhere.
    Conflict,
    /// A record decides.
    Found(Record),
}

/// What a store knows of a key.
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
    /// A record tells.
    Found(Record),
}

/// A claim of lease mode: a right with an end, and the token that proves it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The record.
    pub id: RecordId,
    /// The fencing token.
    pub token: i64,
    /// The token of the first attempt at this call; see the [contract](self#contract), 8.
    pub origin: i64,
    /// The how manieth attempt since the origin this is; the first is 1.
    pub attempts: u32,
}

impl Lease {
    /// A lease as a store grants it to a first attempt.
    #[must_use]
    pub const fn new(id: RecordId, token: i64) -> Self {
        Self {
            id,
            token,
            origin: token,
            attempts: 1,
        }
    }

    /// A lease of an attempt that is not the first.
    #[must_use]
    pub const fn after(self, origin: i64, attempts: u32) -> Self {
        Self {
            origin,
            attempts,
            ..self
        }
    }
}

/// What a change of a lease did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a guarded statement matched or it did not"
)]
pub enum LeaseEnd {
    /// The record was changed as asked, at this moment.
    Done(Timestamp),
    /// The record is no longer under this token; nothing was changed.
    Fenced,
}

/// A result to be recorded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The encoded result; `None` keeps a tombstone that says it was too large.
    pub response: Option<Bytes>,
    /// How long the result is kept, from the moment the finishing statement runs.
    pub retention: Duration,
    /// How long after that a tombstone is kept; zero for none.
    pub tombstone: Duration,
}

impl Completion {
    /// A completion without a tombstone.
    #[must_use]
    pub const fn new(response: Option<Bytes>, retention: Duration) -> Self {
        Self {
            response,
            retention,
            tombstone: Duration::ZERO,
        }
    }
}

/// How a transaction is to end.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a store must handle every way to end"
)]
pub enum End {
    /// Commit the handler's writes and this record, together.
    Commit(Completion),
    /// Commit the handler's writes; there is no record (an unprotected call).
    CommitUnrecorded,
    /// Roll the handler's writes back, then record this.
    RollBackAndRecord(Completion),
    /// Roll the handler's writes back; nothing is recorded.
    RollBack,
    /// Commit the handler's writes and complete this lease, together: for a transaction that was
    /// begun without a claim, while the lease holds the key.
    Complete(Lease, Completion),
}

/// How a transaction ended.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the engine must answer every ending"
)]
pub enum Ended {
    /// As asked, at this moment.
    AsAsked(Timestamp),
    /// The record of another call won; nothing of this one was committed.
    Lost(Record),
    /// Another call holds the key by now; nothing of this one was committed or recorded.
    LostInProgress,
    /// The handler's writes were rolled back before they could be committed (a database error had
    /// aborted the transaction, or the database refused to serialise it); nothing is recorded.
    Aborted(StoreError),
    /// The handler ended the transaction itself. What became of its writes is unknown; the key is
    /// in doubt where it had a record.
    EndedByHandler,
    /// The connection was lost at the commit and what became of it could not be found out.
    Unknown(StoreError),
    /// The record is no longer under the lease's token; nothing of this one was committed.
    Fenced,
}

/// Keeps records. See the [contract](self#contract).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an idempotency store",
    note = "use `MemoryStore`, `SqliteStore` or `PostgresStore`, or implement `Store` and run the conformance suite"
)]
pub trait Store: Send + Sync + 'static {
    /// Who else can see these records.
    fn reach(&self) -> Reach;

    /// The longest that a handler may hold a transaction, for a store in which that keeps
    /// everybody else from writing, renewals of leases too. The engine bounds handlers by it, and
    /// refuses a lease that is not more than three times as long.
    fn transaction_limit(&self) -> Option<Duration> {
        None
    }

    /// Reads a record, without a claim. An expired record is `None`, or
    /// [`RecordState::Expired`] where the claim asks for it.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    fn look_up(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Option<Record>, StoreError>> + Send;

    /// As [`look_up`](Self::look_up), but certain of what runs: [`Inspected::NotSeen`] only after
    /// the key was seen to be free. It takes no claim, and never makes a concurrent claim fail.
    ///
    /// A store whose attempts are all visible in its records (lease mode alone) needs nothing else
    /// than the default.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    fn inspect(&self, claim: &Claim) -> impl Future<Output = Result<Inspected, StoreError>> + Send {
        async move {
            Ok(match self.look_up(claim).await? {
                Some(record) => Inspected::Found(record),
                None => Inspected::NotSeen,
            })
        }
    }

    /// Lease mode: claims durably, before the handler starts.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Unless the error is a lost connection, no claim was made;
    /// after a lost connection there may be one, which lapses into doubt.
    fn claim(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Claimed<Lease>, StoreError>> + Send;

    /// Lease mode: claims, under a new token, a call that is in doubt: one that `token` left so,
    /// for the same fingerprint. Whoever held `token` is fenced. `None` when the record is not, or
    /// no longer, in doubt under that token; nothing was changed then.
    ///
    /// As durable as [`claim`](Self::claim).
    ///
    /// # Errors
    ///
    /// As [`claim`](Self::claim).
    fn take_over(
        &self,
        claim: &Claim,
        token: i64,
    ) -> impl Future<Output = Result<Option<Lease>, StoreError>> + Send;

    /// Lease mode: honours the claim for this long from now. A lease that has ended is not
    /// revived.
    ///
    /// # Errors
    ///
    /// The store could not be asked; the lease ends when it would have, or was renewed.
    fn renew(
        &self,
        lease: &Lease,
        period: Duration,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: records the result.
    ///
    /// # Errors
    ///
    /// The store could not be asked; the record stays in progress until its lease ends, or is
    /// completed.
    fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: gives the claim back; the key is free. For `keep_origin` the next claim of it is
    /// another attempt of the same origin; zero forgets it at once.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    fn release(
        &self,
        lease: &Lease,
        keep_origin: Duration,
    ) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Lease mode: says that the attempt ended without telling: the record is in doubt now.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete).
    fn abandon(&self, lease: &Lease) -> impl Future<Output = Result<LeaseEnd, StoreError>> + Send;

    /// Removes up to `limit` records past their retention, and never one that is in progress, or
    /// in doubt within its own. Answers how many it removed or reduced to a tombstone.
    ///
    /// # Errors
    ///
    /// The store could not be asked. What was removed stays removed.
    fn sweep(&self, limit: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// A store whose record commits together with the handler's writes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no transactions, so a handler cannot take one by `&mut`",
    note = "use `SqliteStore` or `PostgresStore`, or remove the `&mut` parameter and say with `on_error` what an error means"
)]
pub trait TransactionStore: Store {
    /// What the handler is given by `&mut`.
    type Connection: Send + 'static;

    /// An open transaction. Dropping it rolls back.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Claims, and opens the transaction that the handler writes through. Without a claim the
    /// call is unprotected: the answer is always [`Claimed::New`].
    ///
    /// # Errors
    ///
    /// The store could not be asked, or stayed busy. The handler has not run; nothing was changed.
    fn begin(
        &self,
        call: &CallInfo,
        claim: Option<&Claim>,
    ) -> impl Future<Output = Result<Claimed<Self::Transaction>, StoreError>> + Send;

    /// Ends a transaction. `claim` is what it was begun with. Never fails: what went wrong is a
    /// way of having ended.
    fn end(
        &self,
        transaction: Self::Transaction,
        claim: Option<&Claim>,
        end: End,
    ) -> impl Future<Output = Ended> + Send;
}
