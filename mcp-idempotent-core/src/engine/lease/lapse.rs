//! When a lease lapses.
//!
//! Nothing runs at that moment and nothing is written. From then on every store reads the record
//! as in doubt.
//!
//! - *The next call of the key* is given that record by [`Store::claim`](crate::Store::claim).
//!   `begin` does what [`Policy::on_doubt`](crate::Policy::on_doubt) says: refuse the call, take the
//!   record over and run again, or first ask the author's function (`verify`).
//! - *The attempt that lost the lease*, if it is still alive, learns it from `heart`, at the latest
//!   when the lease ends by this process's own clock. `lose`, below, passes it on to the handler. `attempt`
//!   records nothing: the store refuses an attempt whose lease has ended or was taken over.
//! - *An operator* may resolve the record (`operator`, in the engine).

use std::{fmt, sync::atomic::Ordering, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::held::{Held, LeaseStore};
use crate::{
    store::{ForeignRenewal, LeaseEnd, StoreError, StoreErrorKind},
    telemetry,
};

/// When a handler asks about its lease, it waits for the store at least this long, even if the lease
/// may have ended by this process's clock.
const SHORTEST_ANSWER: Duration = Duration::from_secs(1);

/// Why a handler cannot be sure of its lease.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotCurrent {
    /// The lease is lost: it lapsed, an operator resolved the record, or another attempt took over.
    /// What the handler does from now on is not recorded, and may be done twice.
    Fenced,
    /// The attempt has committed its completion in a transaction of another driver, and with that its
    /// lease has ended.
    Completed,
    /// The store could not be queried in time.
    Unconfirmed(StoreError),
}

impl fmt::Display for NotCurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fenced => {
                "the call has lost its lease; another attempt or an operator may have it"
            }
            Self::Completed => "the call is completed, so it no longer has its lease",
            Self::Unconfirmed(_) => "the store could not confirm that the call still has its lease",
        })
    }
}

impl std::error::Error for NotCurrent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fenced | Self::Completed => None,
            Self::Unconfirmed(error) => Some(error),
        }
    }
}

/// How a renewal ended, if the lease is not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewed {
    Extended,
    /// A transaction of another driver has locked the record, probably to complete it. Until it ends,
    /// nobody can take the record over.
    Locked,
}

impl<S: LeaseStore + ?Sized> Held<S> {
    /// Asks the store now whether the lease, and its guard, are current, and renews both.
    pub(super) fn renew_now(&self) -> BoxFuture<'_, Result<(), NotCurrent>> {
        Box::pin(async {
            if self.is_lost() || self.has_returned() {
                return Err(NotCurrent::Fenced);
            }
            if self.ended.load(Ordering::Acquire) {
                return Err(NotCurrent::Completed);
            }
            // A renewal would wait for the very handler that asks. The commit of the open transaction is
            // guarded anyway.
            if self.store.is_blocked_by_transactions() && self.transaction().is_open() {
                return Ok(());
            }
            let bound = Instant::now() + self.left().max(SHORTEST_ANSWER);
            let renewed = timeout_at(bound, self.renew()).await.unwrap_or_else(|_| {
                Err(NotCurrent::Unconfirmed(StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the store did not answer before the lease ended",
                )))
            });
            renewed?;
            match &self.guard {
                Some(guard) => guard.renew_now().await,
                None => Ok(()),
            }
        })
    }

    /// Asks the store to extend the lease to its full length from now.
    pub(super) async fn renew(&self) -> Result<Renewed, NotCurrent> {
        let asked = Instant::now();
        let renewed = match self.store.foreign_transactions() {
            Some(foreign) if self.transaction().is_elsewhere() => {
                foreign.renew(&self.lease, self.terms.lease).await
            }
            _ => match self.store.renew(&self.lease, self.terms.lease).await {
                Ok(LeaseEnd::Done(_)) => Ok(ForeignRenewal::Extended),
                Ok(LeaseEnd::Fenced) => self.fenced_or_completed().await,
                Err(error) => Err(error),
            },
        };
        match renewed {
            Ok(ForeignRenewal::Extended) => {
                self.renewed(asked);
                Ok(Renewed::Extended)
            }
            Ok(ForeignRenewal::Locked) => Ok(Renewed::Locked),
            Ok(ForeignRenewal::Completed) => {
                self.ended.store(true, Ordering::Release);
                Err(NotCurrent::Completed)
            }
            Ok(ForeignRenewal::Fenced) => {
                self.lose("the store says that it is not current");
                Err(NotCurrent::Fenced)
            }
            Err(error) => Err(NotCurrent::Unconfirmed(error)),
        }
    }

    /// The completion may have been handed out, and committed, while the renewal was on its way.
    async fn fenced_or_completed(&self) -> Result<ForeignRenewal, StoreError> {
        match self.store.foreign_transactions() {
            Some(foreign) if self.transaction().is_elsewhere() => {
                let completed = foreign.completed(&self.lease).await?;
                Ok(completed.map_or(ForeignRenewal::Fenced, |_| ForeignRenewal::Completed))
            }
            _ => Ok(ForeignRenewal::Fenced),
        }
    }

    /// Resolves when the attempt is lost.
    pub(in crate::engine) async fn lost(&self) {
        self.course.lost.told().await;
    }

    pub(super) fn is_lost(&self) -> bool {
        self.course.lost.is_told()
    }

    pub(super) fn lose(&self, why: &'static str) {
        // An attempt that ends its own lease has not lost it.
        if self.has_returned() {
            return;
        }
        if self.course.lost.tell() {
            self.count(telemetry::lease_lost);
            tracing::error!(
                tool = &*self.call.tool,
                token = self.lease.token,
                why,
                "a running call has lost its lease; its result will not be recorded"
            );
        }
    }
}
