//! Records in this process's memory: lease mode only, for tests and single processes. A restart
//! forgets everything.

mod operator;

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

use super::{
    CallInfo, Claim, Claimed, Completion, Lease, LeaseEnd, Reach, ResolvedBy, Store, StoreError,
};
use crate::{
    fingerprint::{Fingerprint, RecordId, RecordMap},
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    scope::Application,
};

/// How many expired records each claim removes, so that memory does not grow without a sweep.
const SWEPT_PER_CLAIM: usize = 2;

/// Keeps records in memory. Lease mode only: it has no transaction to share with a handler.
///
/// Its clock is tokio's, so a test can pause and advance it.
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    records: RecordMap<Stored>,
    /// When each record may be reduced to a tombstone or removed.
    expiries: BTreeSet<(Instant, RecordId)>,
    last_token: i64,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            records: RecordMap::default(),
            expiries: BTreeSet::new(),
            // Tokens start at the wall clock. A restart forgets the records, but other systems
            // remember what they were told: a new call must not repeat an old call's downstream
            // keys, and a fencing token that they compare must keep growing.
            last_token: wall_clock().as_micros(),
        }
    }
}

#[derive(Debug)]
struct Stored {
    fingerprint: Fingerprint,
    token: i64,
    /// The first attempt's token. `None` if the next attempt starts a new origin.
    origin: Option<i64>,
    attempts: u32,
    call: CallInfo,
    application: Option<Application>,
    key_prefix: Option<Box<str>>,
    created_at: Timestamp,
    /// The same moment on tokio's clock.
    created: Instant,
    in_doubt_retention: Duration,
    resolved: Option<ResolvedBy>,
    state: State,
    /// The record's entry in `expiries`.
    due: Option<Instant>,
}

#[derive(Debug)]
enum State {
    InProgress {
        lease_end: Instant,
    },
    InDoubt {
        since: Timestamp,
        expires: Instant,
    },
    Completed {
        response: Option<Bytes>,
        at: Timestamp,
        expires: Instant,
        purge: Instant,
    },
    /// The key is free. A claim before `until` continues this record.
    Released {
        until: Instant,
    },
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No user code runs under the lock, so a poisoned one still guards consistent data.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The record as the contract reports it. `None` if it has expired.
    fn report(&self, id: RecordId, on_expired: OnExpired, now: Instant) -> Option<Record> {
        let stored = self.records.get(&id)?;
        let state = match &stored.state {
            State::InProgress { lease_end } if *lease_end > now => RecordState::InProgress {
                lease_remaining: *lease_end - now,
            },
            State::InProgress { lease_end } => {
                if *lease_end + stored.in_doubt_retention <= now {
                    return None;
                }
                stored.in_doubt(wall_clock_at(*lease_end, now))
            }
            State::InDoubt { since, expires } => {
                if *expires <= now {
                    return None;
                }
                stored.in_doubt(*since)
            }
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
            State::Completed { .. } | State::Released { .. } => return None,
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
            let Some(stored) = self.records.get_mut(&id) else {
                continue;
            };
            stored.due = None;
            let later = match &mut stored.state {
                // The lease was renewed meanwhile.
                State::InProgress { lease_end } => {
                    let end = *lease_end + stored.in_doubt_retention;
                    if end > now {
                        self.due(id, end);
                        continue;
                    }
                    None
                }
                State::Completed {
                    response, purge, ..
                } if *purge > now => {
                    *response = None;
                    Some(*purge)
                }
                State::Completed { .. } | State::InDoubt { .. } | State::Released { .. } => None,
            };
            swept += 1;
            match later {
                Some(later) => self.due(id, later),
                None => drop(self.records.remove(&id)),
            }
        }
        swept as u64
    }

    fn due(&mut self, id: RecordId, at: Instant) {
        if let Some(stored) = self.records.get_mut(&id) {
            if let Some(due) = stored.due.replace(at) {
                self.expiries.remove(&(due, id));
            }
            self.expiries.insert((at, id));
        }
    }

    fn remove(&mut self, id: RecordId) -> Option<Stored> {
        let stored = self.records.remove(&id)?;
        if let Some(due) = stored.due {
            self.expiries.remove(&(due, id));
        }
        Some(stored)
    }

    fn next_token(&mut self) -> i64 {
        self.last_token += 1;
        self.last_token
    }

    /// The record, if it is in progress under exactly this token and its lease has not ended.
    fn current(&mut self, lease: &Lease, now: Instant) -> Option<&mut Stored> {
        self.records.get_mut(&lease.id).filter(|stored| {
            stored.token == lease.token
                && matches!(stored.state, State::InProgress { lease_end } if lease_end > now)
        })
    }
}

impl Stored {
    const fn in_doubt(&self, since: Timestamp) -> RecordState {
        RecordState::InDoubt {
            token: self.token,
            attempts: self.attempts,
            since,
        }
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
                stored.state = completed(&completion, at, now);
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

impl Inner {
    /// Sets when the sweep looks at a record whose state has just changed.
    fn due_by_state(&mut self, id: RecordId) {
        let Some(stored) = self.records.get(&id) else {
            return;
        };
        let at = match stored.state {
            State::InProgress { lease_end } => lease_end + stored.in_doubt_retention,
            State::InDoubt { expires, .. } | State::Completed { expires, .. } => expires,
            State::Released { until } => until,
        };
        self.due(id, at);
    }
}

fn completed(completion: &Completion, at: Timestamp, now: Instant) -> State {
    let expires = after(now, completion.retention);
    State::Completed {
        response: completion.response.clone(),
        at,
        expires,
        purge: after(expires, completion.tombstone),
    }
}

/// Anything longer than a hundred years counts as a hundred years, because no policy checks an
/// operator's durations.
fn after(moment: Instant, duration: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    moment + duration.min(LONGEST)
}

fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// Converts a time on tokio's clock to the wall clock.
fn wall_clock_at(moment: Instant, now: Instant) -> Timestamp {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let wall = wall_clock().as_micros();
    Timestamp::from_micros(if moment > now {
        wall.saturating_add(micros(moment - now))
    } else {
        wall.saturating_sub(micros(now - moment))
    })
}
