//! The tickets of a quota, and what this process has of them.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::{
    fingerprint::{Fingerprint, RecordId, RecordMap, Secret},
    policy::Policy,
    scope::{Application, Scope},
    store::{CallInfo, Claim, Claimed, Store, StoreError},
};

/// The most tickets of a quota.
const TICKETS: u32 = 16;

const SHORTEST_PERIOD: Duration = Duration::from_secs(1);

/// How long a scope is refused without asking the store again, as a part of the period.
const REFUSED_FOR: u32 = 64;
const LONGEST_REFUSAL: Duration = Duration::from_secs(10);

/// How long a ticket's record outlives its lease.
const FORGOTTEN_AFTER: Duration = Duration::from_millis(1);

/// Counts the new calls of each scope.
pub(in crate::engine) struct Quota {
    /// How many calls all tickets together allow.
    most: u32,
    tickets: u32,
    period: Duration,
    scopes: Mutex<Scopes>,
}

#[derive(Default)]
struct Scopes {
    /// By the id of the scope's first ticket.
    counts: RecordMap<Count>,
    /// When there are this many counts, those whose tickets have ended are removed.
    swept_at: usize,
}

/// What one scope may still do in this process.
#[derive(Default)]
struct Count {
    tickets: Vec<Ticket>,
    refused_until: Option<Instant>,
    /// A call asks the store for another ticket. The others wait for what it finds, so that one burst
    /// does not take all tickets.
    asking: Option<watch::Receiver<Option<Asked>>>,
}

/// What came of a question.
type Asked = Result<(), StoreError>;

struct Ticket {
    left: u32,
    until: Instant,
}

/// The right to begin one call. It is given back when it is dropped unspent.
pub(in crate::engine) struct Allowance {
    quota: Arc<Quota>,
    scope: RecordId,
    /// When its ticket ends.
    until: Instant,
    spent: bool,
}

/// Whose quota it is.
pub(in crate::engine) struct Owner<'a> {
    pub(in crate::engine) application: &'a Application,
    pub(in crate::engine) scope: &'a Scope,
    pub(in crate::engine) secret: Option<&'a Secret>,
}

impl Quota {
    /// At most `most` calls in each period.
    pub(in crate::engine) fn new(most: u32, period: Duration) -> Self {
        let most = most.max(1);
        let tickets = most.min(TICKETS);
        Self {
            most,
            tickets,
            period: period.clamp(SHORTEST_PERIOD, Policy::LONGEST),
            scopes: Mutex::default(),
        }
    }

    /// The right to begin one call. `None` if the scope has none left.
    ///
    /// # Errors
    ///
    /// The store could not be queried. A ticket may be lost until its lease ends.
    pub(in crate::engine) async fn allow<S: Store>(
        self: &Arc<Self>,
        store: &S,
        owner: &Owner<'_>,
    ) -> Result<Option<Allowance>, StoreError> {
        let scope = self.ticket(owner, 0).id;
        loop {
            let taken = self.lock().take(scope);
            match taken {
                Taken::Until(until) => {
                    return Ok(Some(Allowance {
                        quota: Arc::clone(self),
                        scope,
                        until,
                        spent: false,
                    }));
                }
                Taken::Refused => return Ok(None),
                Taken::Wait(mut answer) => {
                    // If the caller that asked is gone, the next one asks.
                    if let Ok(asked) = answer.wait_for(Option::is_some).await
                        && let Some(Err(error)) = &*asked
                    {
                        return Err(error.clone());
                    }
                }
                Taken::Ask(tell) => {
                    let asked = self.ask(store, owner, scope).await;
                    let _ = tell.send(Some(asked.clone()));
                    asked?;
                }
            }
        }
    }

    /// Asks the store for a ticket.
    async fn ask<S: Store>(&self, store: &S, owner: &Owner<'_>, scope: RecordId) -> Asked {
        let asked = Instant::now();
        let claimed = self.claim_one(store, owner).await;
        let mut scopes = self.lock();
        let count = scopes.counts.entry(scope).or_default();
        count.asking = None;
        if let Some(number) = claimed? {
            count.tickets.push(Ticket {
                left: self.share(number),
                until: asked + self.period,
            });
        } else {
            let pause = (self.period / REFUSED_FOR).min(LONGEST_REFUSAL);
            count.refused_until = Some(asked + pause);
        }
        Ok(())
    }

    /// The number of the ticket that was claimed.
    async fn claim_one<S: Store>(
        &self,
        store: &S,
        owner: &Owner<'_>,
    ) -> Result<Option<u32>, StoreError> {
        for number in 0..self.tickets {
            let ticket = self.ticket(owner, number);
            if let Claimed::New(_) = store.claim(&ticket).await? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// How many calls a ticket allows. The first ones allow one more, if the quota is not a multiple.
    fn share(&self, number: u32) -> u32 {
        self.most / self.tickets + u32::from(number < self.most % self.tickets)
    }

    fn ticket(&self, owner: &Owner<'_>, number: u32) -> Claim {
        let id = RecordId::of_ticket(owner.application, owner.scope, number, owner.secret);
        let call = CallInfo::internal("ticket");
        let mut claim = Claim::new(id, Fingerprint::of_no_call(id), call);
        claim.lease = self.period;
        claim.in_doubt_retention = FORGOTTEN_AFTER;
        claim
    }

    fn lock(&self) -> MutexGuard<'_, Scopes> {
        // No user code runs under this lock.
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Taken {
    /// One call from a ticket that ends at this time.
    Until(Instant),
    /// The store said no a moment ago.
    Refused,
    /// Another call asks the store now.
    Wait(watch::Receiver<Option<Asked>>),
    /// The store has to be asked, and the others told.
    Ask(watch::Sender<Option<Asked>>),
}

impl Scopes {
    fn take(&mut self, scope: RecordId) -> Taken {
        let now = Instant::now();
        self.sweep(now);
        let count = self.counts.entry(scope).or_default();
        count.tickets.retain(|ticket| ticket.until > now);
        if let Some(ticket) = count.tickets.iter_mut().find(|ticket| ticket.left > 0) {
            ticket.left -= 1;
            return Taken::Until(ticket.until);
        }
        match count.refused_until {
            Some(until) if until > now => Taken::Refused,
            _ => match &count.asking {
                // Closed if the caller that asked is gone.
                Some(asking) if asking.has_changed().is_ok() => Taken::Wait(asking.clone()),
                _ => {
                    let (tell, told) = watch::channel(None);
                    count.asking = Some(told);
                    Taken::Ask(tell)
                }
            },
        }
    }

    /// Drops scopes whose tickets have ended, before the list grows.
    fn sweep(&mut self, now: Instant) {
        if self.counts.len() < self.swept_at {
            return;
        }
        self.counts.retain(|_, count| {
            count
                .asking
                .as_ref()
                .is_some_and(|asking| asking.has_changed().is_ok())
                || count.refused_until.is_some_and(|until| until > now)
                || count.tickets.iter().any(|ticket| ticket.until > now)
        });
        self.swept_at = (self.counts.len() * 2).max(1024);
    }
}

impl Allowance {
    /// The call has begun.
    pub(in crate::engine) fn spend(mut self) {
        self.spent = true;
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        if self.spent {
            return;
        }
        let mut scopes = self.quota.lock();
        let count = scopes.counts.get_mut(&self.scope);
        let ticket = count.and_then(|count| {
            let mut tickets = count.tickets.iter_mut();
            tickets.find(|ticket| ticket.until == self.until)
        });
        if let Some(ticket) = ticket {
            ticket.left += 1;
        }
    }
}
