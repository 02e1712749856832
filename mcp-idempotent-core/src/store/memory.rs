//! Records in this process's memory: lease mode, for tests and single processes. It forgets
//! everything at restart.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{Claim, Claimed, Completion, Lease, LeaseEnd, Reach, Store, StoreError};
use crate::{
    fingerprint::{Fingerprint, RecordId},
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
};

/// How many expired records a claim removes on its way, so that memory does not grow without a
/// sweep.
const SWEPT_PER_CLAIM: usize = 2;

/// Keeps records in memory. Lease mode only: it has no transaction to share with a handler.
///
/// Its clock is tokio's, so a test can pause and advance it.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<RecordId, Stored>,
    /// When each completed record may be reduced or removed.
    expiries: BTreeSet<(Instant, RecordId)>,
    last_token: i64,
}

#[derive(Debug)]
struct Stored {
    fingerprint: Fingerprint,
    token: i64,
    state: State,
}

#[derive(Debug)]
enum State {
    InProgress {
        lease_end: Instant,
    },
    InDoubt,
    Completed {
        response: Option<Bytes>,
        at: Timestamp,
        expires: Instant,
        purge: Instant,
    },
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many records it holds, expired ones that were not swept included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().records.len()
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No user code runs under the lock, so a poisoned one still guards consistent data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The record as the contract reports it; `None` also for one that is expired.
    fn report(&self, id: RecordId, on_expired: OnExpired, now: Instant) -> Option<Record> {
        let stored = self.records.get(&id)?;
        let state = match &stored.state {
            State::InProgress { lease_end } if *lease_end > now => RecordState::InProgress {
                lease_remaining: *lease_end - now,
            },
            State::InProgress { .. } | State::InDoubt => RecordState::InDoubt,
            State::Completed {
                response,
                at,
                expires,
                ..
            } if *expires > now => RecordState::Completed {
                response: response.clone(),
                at: *at,
            },
            State::Completed { purge, .. } if on_expired == OnExpired::Refuse && *purge > now => {
                RecordState::Expired
            }
            State::Completed { .. } => return None,
        };
        Some(Record::new(stored.fingerprint, state))
    }

    fn sweep(&mut self, limit: usize, now: Instant) -> u64 {
        let mut swept = 0;
        while swept < limit {
            let Some((due, id)) = self.expiries.first().copied() else {
                break;
            };
            if due > now {
                break;
            }
            self.expiries.pop_first();
            swept += 1;
            if let Some(Stored {
                state: State::Completed {
                    response, purge, ..
                },
                ..
            }) = self.records.get_mut(&id)
            {
                if *purge > now {
                    *response = None;
                    self.expiries.insert((*purge, id));
                } else {
                    self.records.remove(&id);
                }
            }
        }
        swept as u64
    }

    fn remove(&mut self, id: RecordId) {
        if let Some(Stored {
            state: State::Completed { expires, purge, .. },
            ..
        }) = self.records.remove(&id)
        {
            self.expiries.remove(&(expires, id));
            self.expiries.remove(&(purge, id));
        }
    }

    /// The record, if it is in progress under this very token and its lease still runs.
    fn current(&mut self, lease: &Lease, now: Instant) -> Option<&mut Stored> {
        self.records.get_mut(&lease.id).filter(|stored| {
            stored.token == lease.token
                && matches!(stored.state, State::InProgress { lease_end } if lease_end > now)
        })
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
        inner.remove(claim.id);
        inner.last_token += 1;
        let token = inner.last_token;
        inner.records.insert(
            claim.id,
            Stored {
                fingerprint: claim.fingerprint,
                token,
                state: State::InProgress {
                    lease_end: now + claim.lease,
                },
            },
        );
        Ok(Claimed::New(Lease::new(claim.id, token)))
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let (now, at) = (Instant::now(), wall_clock());
        let mut inner = self.lock();
        let Some(stored) = inner.current(lease, now) else {
            return Ok(LeaseEnd::Fenced);
        };
        let expires = now + completion.retention;
        stored.state = State::Completed {
            response: completion.response,
            at,
            expires,
            purge: expires + completion.tombstone,
        };
        inner.expiries.insert((expires, lease.id));
        Ok(LeaseEnd::Done(at))
    }

    async fn release(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let mut inner = self.lock();
        if inner.current(lease, Instant::now()).is_none() {
            return Ok(LeaseEnd::Fenced);
        }
        inner.records.remove(&lease.id);
        Ok(LeaseEnd::Done(wall_clock()))
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let mut inner = self.lock();
        let Some(stored) = inner.current(lease, Instant::now()) else {
            return Ok(LeaseEnd::Fenced);
        };
        stored.state = State::InDoubt;
        Ok(LeaseEnd::Done(wall_clock()))
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Ok(self.lock().sweep(limit, Instant::now()))
    }
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}
