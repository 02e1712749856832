//! Records in this process's memory: lease mode only, for tests and single processes. A restart
//! forgets everything.

mod operator;
mod records;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use self::records::{Records, State, Stored, completed, wall_clock};
use super::{CallInfo, Claim, Claimed, Completion, Lease, LeaseEnd, Reach, Store, StoreError};
use crate::{
    policy::OnExpired,
    record::{Record, RecordState},
};

/// How many expired records each claim removes, so that memory does not grow without a sweep.
const SWEPT_PER_CLAIM: usize = 2;

/// Keeps records in memory. Lease mode only: it has no transaction to share with a handler.
///
/// Its clock is tokio's, so a test can pause and advance it.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Records>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many records it holds, including expired ones that are not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // No user code runs under the lock, so a poisoned one still guards consistent data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn reach(&self) -> Reach {
        Reach::Process
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        Ok(self
            .lock()
            .report(claim.id, claim.on_expired, Instant::now()))
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.sweep(SWEPT_PER_CLAIM, now);
        if let Some(record) = inner.report(claim.id, claim.on_expired, now) {
            return Ok(Claimed::Found(record));
        }
        let before = inner
            .remove(claim.id)
            .filter(|stored| matches!(stored.state, State::Released { until } if until > now));
        let token = inner.next_token();
        let lease = match &before {
            Some(Stored {
                origin: Some(origin),
                attempts,
                ..
            }) => Lease::new(claim.id, token).after(*origin, attempts + 1),
            _ => Lease::new(claim.id, token),
        };
        let (created_at, created, resolved) = match before {
            Some(stored) => (stored.created_at, stored.created, stored.resolved),
            None => (wall_clock(), now, None),
        };
        let stored = Stored {
            fingerprint: claim.fingerprint,
            token,
            origin: Some(lease.origin),
            attempts: lease.attempts,
            call: claim.call.clone(),
            application: claim.application.clone(),
            key_prefix: claim.key_prefix.clone(),
            created_at,
            created,
            in_doubt_retention: claim.in_doubt_retention,
            resolved,
            state: State::InProgress {
                lease_end: now + claim.lease,
            },
            due: None,
        };
        inner.records.insert(claim.id, stored);
        inner.due(claim.id, now + claim.lease + claim.in_doubt_retention);
        Ok(Claimed::New(lease))
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        let now = Instant::now();
        let mut inner = self.lock();
        let in_doubt = inner
            .report(claim.id, OnExpired::New, now)
            .is_some_and(|record| {
                record.fingerprint == claim.fingerprint
                    && matches!(record.state, RecordState::InDoubt { token: left, .. } if left == token)
            });
        if !in_doubt {
            return Ok(None);
        }
        let drawn = inner.next_token();
        let Some(stored) = inner.records.get_mut(&claim.id) else {
            return Ok(None);
        };
        stored.token = drawn;
        stored.attempts += 1;
        stored.in_doubt_retention = claim.in_doubt_retention;
        stored.state = State::InProgress {
            lease_end: now + claim.lease,
        };
        let origin = *stored.origin.get_or_insert(drawn);
        let lease = Lease::new(claim.id, drawn).after(origin, stored.attempts);
        inner.due(claim.id, now + claim.lease + claim.in_doubt_retention);
        Ok(Some(lease))
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        let now = Instant::now();
        let mut inner = self.lock();
        let Some(stored) = inner.current(lease, now) else {
            return Ok(LeaseEnd::Fenced);
        };
        stored.state = State::InProgress {
            lease_end: now + period,
        };
        Ok(LeaseEnd::Done(wall_clock()))
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let (now, at) = (Instant::now(), wall_clock());
        let mut inner = self.lock();
        let both = || std::iter::once(lease).chain(&completion.guard);
        if both().any(|held| inner.current(held, now).is_none()) {
            return Ok(LeaseEnd::Fenced);
        }
        for held in both() {
            if let Some(stored) = inner.current(held, now) {
                let retention = if held == lease {
                    completion.retention
                } else {
                    completion.retention_of_guard()
                };
                stored.state = completed(&completion, retention, at, now);
                inner.due_by_state(held.id);
            }
        }
        Ok(LeaseEnd::Done(at))
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        let now = Instant::now();
        let mut inner = self.lock();
        let Some(stored) = inner.current(lease, now) else {
            return Ok(LeaseEnd::Fenced);
        };
        if keep_origin.is_zero() {
            inner.remove(lease.id);
        } else {
            stored.state = State::Released {
                until: now + keep_origin,
            };
            inner.due_by_state(lease.id);
        }
        Ok(LeaseEnd::Done(wall_clock()))
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let (now, at) = (Instant::now(), wall_clock());
        let mut inner = self.lock();
        let Some(stored) = inner.current(lease, now) else {
            return Ok(LeaseEnd::Fenced);
        };
        stored.state = State::InDoubt {
            since: at,
            expires: now + stored.in_doubt_retention,
        };
        inner.due_by_state(lease.id);
        Ok(LeaseEnd::Done(at))
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        let now = Instant::now();
        let inner = self.lock();
        let mut calls = inner
            .records
            .iter()
            .filter(|(_, stored)| !CallInfo::is_internal(&stored.call.tool));
        Ok(calls.any(|(id, stored)| {
            let record = inner.report(*id, OnExpired::New, now);
            let is_open = |record: Record| !matches!(record.state, RecordState::Completed { .. });
            now - stored.created > age && record.is_some_and(is_open)
        }))
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.lock().sweep(limit, Instant::now()))
    }
}
