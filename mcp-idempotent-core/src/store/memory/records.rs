//! The records, and what time does to them.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    fingerprint::{Fingerprint, RecordId, RecordMap},
    policy::OnExpired,
    record::{Record, RecordState, Timestamp},
    scope::Application,
    store::{CallInfo, Completion, Lease, ResolvedBy},
};

#[derive(Debug)]
pub(super) struct Records {
    pub(super) records: RecordMap<Stored>,
    /// When each record may be reduced to a tombstone or removed.
    pub(super) expiries: BTreeSet<(Instant, RecordId)>,
    pub(super) last_token: i64,
}

impl Default for Records {
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
pub(super) struct Stored {
    pub(super) fingerprint: Fingerprint,
    pub(super) token: i64,
    /// The first attempt's token. `None` if the next attempt starts a new origin.
    pub(super) origin: Option<i64>,
    pub(super) attempts: u32,
    pub(super) call: CallInfo,
    pub(super) application: Option<Application>,
    pub(super) key_prefix: Option<Box<str>>,
    pub(super) created_at: Timestamp,
    /// The same moment on tokio's clock.
    pub(super) created: Instant,
    pub(super) in_doubt_retention: Duration,
    pub(super) resolved: Option<ResolvedBy>,
    pub(super) state: State,
    /// The record's entry in `expiries`.
    pub(super) due: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum State {
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

impl Records {
    /// The record as the contract reports it. `None` if it has expired.
    pub(super) fn report(
        &self,
        id: RecordId,
        on_expired: OnExpired,
        now: Instant,
    ) -> Option<Record> {
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

    pub(super) fn sweep(&mut self, limit: usize, now: Instant) -> u64 {
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

    pub(super) fn due(&mut self, id: RecordId, at: Instant) {
        if let Some(stored) = self.records.get_mut(&id) {
            if let Some(due) = stored.due.replace(at) {
                self.expiries.remove(&(due, id));
            }
            self.expiries.insert((at, id));
        }
    }

    pub(super) fn remove(&mut self, id: RecordId) -> Option<Stored> {
        let stored = self.records.remove(&id)?;
        if let Some(due) = stored.due {
            self.expiries.remove(&(due, id));
        }
        Some(stored)
    }

    pub(super) fn next_token(&mut self) -> i64 {
        self.last_token += 1;
        self.last_token
    }

    /// The record, if it is in progress under exactly this token and its lease has not ended.
    pub(super) fn current(&mut self, lease: &Lease, now: Instant) -> Option<&mut Stored> {
        self.records.get_mut(&lease.id).filter(|stored| {
            stored.token == lease.token
                && matches!(stored.state, State::InProgress { lease_end } if lease_end > now)
        })
    }

    /// Sets when the sweep looks at a record whose state has just changed.
    pub(super) fn due_by_state(&mut self, id: RecordId) {
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

impl Stored {
    const fn in_doubt(&self, since: Timestamp) -> RecordState {
        RecordState::InDoubt {
            token: self.token,
            attempts: self.attempts,
            since,
        }
    }
}

pub(super) fn completed(
    completion: &Completion,
    retention: Duration,
    at: Timestamp,
    now: Instant,
) -> State {
    let expires = after(now, retention);
    State::Completed {
        response: completion.response.clone(),
        at,
        expires,
        purge: after(expires, completion.tombstone),
    }
}

/// Anything longer than a hundred years counts as a hundred years, because no policy checks an
/// operator's durations.
pub(super) fn after(moment: Instant, duration: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    moment + duration.min(LONGEST)
}

pub(super) fn wall_clock() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}

/// Converts a time on tokio's clock to the wall clock.
pub(super) fn wall_clock_at(moment: Instant, now: Instant) -> Timestamp {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let wall = wall_clock().as_micros();
    Timestamp::from_micros(if moment > now {
        wall.saturating_add(micros(moment - now))
    } else {
        wall.saturating_sub(micros(now - moment))
    })
}
