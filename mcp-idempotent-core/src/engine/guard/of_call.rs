//! The guard that a call holds.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::{
    ending::{EndGuard, GuardEnd},
    terms::{GuardOf, GuardTerms},
};
use crate::{
    engine::lease::Held,
    fingerprint::{Fingerprint, Identity, RecordId},
    record::{Record, RecordState},
    store::Completion,
};

/// What is known of earlier attempts when the guard is claimed. If the guard is dropped, it leaves its id so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Found {
    /// There was none, or it committed nothing.
    Free,
    /// One that guarded a transaction, as its witness says. Nothing was committed, unless the call's record
    /// says so.
    Witnessed,
    /// One may have acted, or the call's record decides.
    InDoubt,
}

/// What an attempt has to know about its guard.
#[derive(Clone)]
pub(in crate::engine) struct Under {
    pub(in crate::engine) guard: Arc<Held>,
    pub(in crate::engine) id: RecordId,
    pub(in crate::engine) fingerprint: Fingerprint,
    pub(in crate::engine) origin: i64,
    /// An earlier attempt may have acted.
    pub(in crate::engine) in_doubt: bool,
}

/// A call's guard. If it is dropped, it leaves its id in the safest state it can.
pub(in crate::engine) struct Guard {
    leases: Option<Box<dyn EndGuard>>,
    pub(in crate::engine) under: Under,
    terms: GuardTerms,
    found: Found,
    /// The record in doubt that it was taken over from.
    pub(super) in_doubt: Option<Record>,
    may_have_acted: bool,
    committing: bool,
}

impl Guard {
    pub(super) fn new(
        leases: Box<dyn EndGuard>,
        terms: GuardTerms,
        under: Under,
        found: Found,
    ) -> Self {
        Self {
            leases: Some(leases),
            terms,
            under,
            found,
            in_doubt: None,
            may_have_acted: false,
            committing: false,
        }
    }

    /// The call's record is claimed. So any interrupted attempt's transaction has ended without a record:
    /// it committed nothing.
    pub(in crate::engine) fn claimed(&mut self) {
        if self.found == Found::Witnessed {
            self.found = Found::Free;
        }
    }

    /// The record in doubt that it was taken over from.
    pub(in crate::engine) fn in_doubt(&self) -> Option<Record> {
        self.in_doubt.clone()
    }

    /// The call in doubt was found not to have acted.
    pub(in crate::engine) fn verified(&mut self) {
        self.found = Found::Free;
    }

    /// The handler starts now.
    pub(in crate::engine) fn started(&mut self) {
        self.may_have_acted = !self.terms.transaction;
    }

    /// The transaction is being ended. Until there is an answer, its outcome is unknown.
    pub(in crate::engine) fn committing(&mut self) {
        self.committing = true;
        self.under.guard.returned();
    }

    pub(in crate::engine) async fn lost(&self) {
        self.under.guard.lost().await;
    }

    /// Lets the store complete the guard together with the record.
    pub(in crate::engine) fn join(&self, completion: &mut Completion) {
        completion.guard = Some(self.under.guard.lease.clone());
        completion.guard_retention = self.is_of_equal_calls().then_some(self.terms.retention);
    }

    pub(in crate::engine) fn is_of_equal_calls(&self) -> bool {
        self.terms.of == GuardOf::EqualCalls
    }

    pub(in crate::engine) async fn end(mut self, end: GuardEnd) {
        if let Some(leases) = self.leases.take() {
            leases.end(end).await;
        }
    }

    /// Gives the guard's id the same record that the call has.
    pub(in crate::engine) async fn settle(self, record: &Record, identity: &Identity) {
        let end = match &record.state {
            RecordState::Completed { response, at } if identity.is_of(record.fingerprint) => {
                GuardEnd::Copy {
                    response: response.clone(),
                    at: *at,
                }
            }
            RecordState::InDoubt { .. } if self.is_of_equal_calls() => GuardEnd::Abandon,
            _ => self.as_found(),
        };
        self.end(end).await;
    }

    fn as_found(&self) -> GuardEnd {
        if self.committing || self.found == Found::Witnessed {
            GuardEnd::AbandonWitnessed
        } else if self.may_have_acted || self.found == Found::InDoubt {
            GuardEnd::Abandon
        } else {
            GuardEnd::Release { acted: false }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let end = self.as_found();
        if let Some(leases) = self.leases.take()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn(leases.end(end)));
        }
    }
}
