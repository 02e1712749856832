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
//! 2. **A claim reports and never waits long.** If another attempt holds the key,
//!    the answer is [`Claimed::InProgress`] (same fingerprint), [`Claimed::Conflict`] (another
//!    fingerprint) or [`Claimed::Found`], and the engine polls. A store that must queue (a single
//!    writer) bounds its queue and answers [`StoreErrorKind::Busy`].
//! 3. **Expired is absent.** A record past its expiry is never reported, swept or not, except as
//!    [`RecordState::Expired`] to a claim with [`OnExpired::Refuse`]. It does not block a new
//!    claim. Replacing it never lets two racing claims both succeed.
//! 4. **Fencing.** [`Lease::token`] grows and is never used twice, even after the record was
//!    released or swept. [`Store::renew`], [`Store::complete`], [`Store::release`],
//!    [`Store::abandon`] and [`End::Complete`] change a record only while it is in progress under
//!    exactly that token and its lease has not ended. Otherwise they answer [`LeaseEnd::Fenced`]
//!    ([`Ended::Fenced`]) and change nothing.
//! 5. **A lapsed lease is in doubt.** It is reported as [`RecordState::InDoubt`] and is never
//!    claimed anew. Only [`Store::take_over`] makes it run again. It is kept for
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
//!    lease of another record. Then both get the result in one step, or neither does.
//! 10. **Dropping is safe.** Dropping a transaction rolls it back. Dropping the future of any method
//!     at any await point leaves no pooled connection inside a transaction.

mod audit;
mod error;
pub mod memory;
mod operator;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::{future::Future, ops::DerefMut, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub use self::{
    audit::{Audit, InvalidAudit},
    error::{StoreError, StoreErrorKind},
    operator::{
        OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind, Resolved,
        ResolvedBy,
    },
};
#[cfg(doc)]
use crate::record::RecordState;
use crate::{
    fingerprint::{Fingerprint, RecordId},
    policy::OnExpired,
    record::{Record, Timestamp},
    scope::{Application, Scope},
};

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
    /// The same call is running elsewhere.
    InProgress,
    /// A different call is running elsewhere under this key.
    Conflict,
    /// There is a record, and it decides the answer.
    Found(Record),
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
    /// The token of the first attempt at this call; see the [contract](self#contract), 8.
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
    /// The record is no longer under this token. Nothing was changed.
    Fenced,
}

/// A result to record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The encoded result. `None` keeps a tombstone that says that the result was too large.
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
        }
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
    /// As asked, at this time, which callers that joined are told. A store that does not ask its
    /// database each time may be off by some milliseconds; the record has the database's own time.
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
    /// The record is no longer under the lease's token, or the completion's guard is lost. Nothing of
    /// this call was committed.
    Fenced,
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

    /// Like [`sweep`](Self::sweep), for a sweep that comes again and again. It may look at a part of
    /// the records only, if the next ones look at the rest.
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

    /// Resolves when the session of an open transaction is seen to have ended while its handler still
    /// runs. The handler's writes are then lost. `None` if a transaction cannot end by itself.
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
