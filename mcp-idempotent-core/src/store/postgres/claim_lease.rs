//! Claiming in lease mode: a claim or a takeover that is durable before the handler starts. If its
//! answer is lost, the lease is found again by the claim's mark, or given back.

use std::time::Duration;

use sqlx::{Row as _, postgres::PgRow};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use super::{
    batch::Batch,
    bound::from_now,
    claim_transaction::{FollowUp, follow_up, see_again},
    connection::Session,
    literal::Argument,
    lock::Mark,
    look_up::attempts,
    statement::Step,
    store::PostgresStore,
    tries::{Outcome, Purpose, Raised, Tries},
};
use crate::store::{Claim, Claimed, Lease, StoreError};

/// The pauses between tries to give a claim back.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) async fn claim(
    store: &PostgresStore,
    claim: &Claim,
) -> Result<Claimed<Lease>, StoreError> {
    let mut tries = Tries::new(store, "the claim failed");
    let mut session = tries.session().await?;
    if store.inner.completed.has(claim.id) {
        let found;
        (session, found) = Box::pin(see_again(&mut tries, session, claim)).await?;
        if let Some(record) = found {
            session.release();
            return Ok(Claimed::Found(record));
        }
    }
    let fingerprint = claim.fingerprint.to_stored();
    let mut sent = LeaseClaim::new(store, claim, Step::ClaimLease);
    let [of_key, of_call, key] = store.inner.locks.all_of(claim);
    let arguments = [
        of_key,
        of_call,
        key,
        Argument::Bytes(claim.id.as_bytes()),
        Argument::Bytes(&fingerprint),
        Argument::Labels(claim),
        Argument::interval(claim.lease),
        Argument::interval(claim.in_doubt_retention),
        Argument::Integer(sent.mark.0),
    ];
    let record = Argument::record(claim);
    // Whether a record that is past its end may be in the way.
    let mut makes_room = false;
    loop {
        let answered = sent.run(&mut tries, session, |batch| {
            let batch = if makes_room {
                batch.call(Step::ExpireUnkept, &record)
            } else {
                batch
            };
            batch.call(Step::ClaimLease, &arguments)
        });
        let (aborted, raised) = match answered.await? {
            Answered::Lease(lease) => return Ok(Claimed::New(lease)),
            Answered::Raised(session, raised) => (session, raised),
        };
        let next = follow_up(&mut tries, aborted, raised, claim, |batch| {
            let begun = batch.begin_short();
            begun.call(Step::LookUp, &record).steps([Step::Commit])
        });
        // Try again if the record has expired, or was released, in between.
        session = match Box::pin(next).await? {
            FollowUp::Answer(answer) => return Ok(answer),
            FollowUp::Again(session) => session,
        };
        makes_room = true;
    }
}

pub(super) async fn take_over(
    store: &PostgresStore,
    claim: &Claim,
    token: i64,
) -> Result<Option<Lease>, StoreError> {
    let mut tries = Tries::new(store, "the claim failed");
    let session = tries.session().await?;
    let fingerprint = claim.fingerprint.to_stored();
    let mut sent = LeaseClaim::new(store, claim, Step::TakeOver);
    let arguments = [
        Argument::Bytes(claim.id.as_bytes()),
        Argument::Integer(token),
        Argument::Bytes(&fingerprint),
        Argument::interval(claim.lease),
        Argument::interval(claim.in_doubt_retention),
        Argument::Integer(sent.mark.0),
    ];
    let answered = sent.run(&mut tries, session, |batch| {
        let locked = batch
            .steps([Step::Durably])
            .try_locks(store, Step::LockKey, claim);
        locked.call(Step::TakeOver, &arguments)
    });
    match answered.await? {
        Answered::Lease(lease) => Ok(Some(lease)),
        Answered::Raised(mut session, _) => {
            if tries.roll_back(&mut session).await.is_ok() {
                session.release();
            }
            Ok(None)
        }
    }
}

/// What came of a claim.
enum Answered {
    Lease(Lease),
    /// The connection may be inside an aborted transaction.
    Raised(Session, Raised),
}

/// A statement that claims a lease, and the mark by which its record is recognised.
struct LeaseClaim<'a> {
    store: &'a PostgresStore,
    claim: &'a Claim,
    step: Step,
    mark: Mark,
    /// An answer was lost, so there may be a lease that nobody knows of.
    is_open: bool,
}

impl<'a> LeaseClaim<'a> {
    fn new(store: &'a PostgresStore, claim: &'a Claim, step: Step) -> Self {
        Self {
            store,
            claim,
            step,
            mark: Mark::new(),
            is_open: false,
        }
    }

    /// Runs `change`, which claims durably under the claim's locks, in a transaction of its own.
    /// Its step returns what a lease is made of.
    async fn run(
        &mut self,
        tries: &mut Tries<'a>,
        session: Session,
        change: impl Fn(Batch<'a>) -> Batch<'a>,
    ) -> Result<Answered, StoreError> {
        let claim = self.claim;
        let outcome = tries.run(session, Purpose::Commit, |batch, _| {
            change(batch.begin_short()).steps([Step::Commit])
        });
        let outcome = outcome.await;
        self.is_open = tries.may_be_committed;
        let (session, raised) = match outcome? {
            Outcome::Through(session, answer) => match answer.row(self.step) {
                Some(row) => return self.lease(session, row),
                // The record did not match the statement's conditions.
                None => (session, Raised::RecordExists),
            },
            Outcome::Raised(session, raised) => (session, raised),
        };
        if !self.is_open {
            return Ok(Answered::Raised(session, raised));
        }
        let arguments = [
            Argument::Bytes(claim.id.as_bytes()),
            Argument::Integer(self.mark.0),
        ];
        let mut session = session;
        let failed = |error| self.store.error("the claim could not be looked up", error);
        tries.roll_back(&mut session).await.map_err(failed)?;
        let found = tries.run(session, Purpose::Read, |batch, _| {
            batch.call(Step::LostClaim, &arguments)
        });
        let (session, answer) = found.await?.through();
        match answer.row(Step::LostClaim) {
            Some(row) => self.lease(session, row),
            None => Ok(Answered::Raised(session, raised)),
        }
    }

    fn lease(&mut self, session: Session, row: &PgRow) -> Result<Answered, StoreError> {
        let lease = claimed(self.claim, row)
            .map_err(|error| self.store.error("the claim could not be read", error))?;
        self.is_open = false;
        session.release();
        Ok(Answered::Lease(lease))
    }
}

impl Drop for LeaseClaim<'_> {
    /// If the answer was lost for good, nobody will run under the lease. So it is given back, and
    /// its record is not in doubt.
    fn drop(&mut self) {
        if self.is_open
            && let Ok(runtime) = Handle::try_current()
        {
            let (store, claim) = (self.store.clone(), self.claim.clone());
            drop(runtime.spawn(give_back(store, claim, self.step, self.mark)));
        }
    }
}

/// Waits until the lost session is over, and gives back what it claimed. It tries for as long as
/// the lease would last.
async fn give_back(store: PostgresStore, claim: Claim, step: Step, mark: Mark) {
    const IN_DOUBT: i64 = 2;
    const RELEASED: i64 = 4;
    let until = from_now(claim.lease);
    let mut pause = FIRST_PAUSE;
    let state = if step == Step::TakeOver {
        IN_DOUBT
    } else {
        RELEASED
    };
    let arguments = [
        Argument::Bytes(claim.id.as_bytes()),
        Argument::Integer(mark.0),
        Argument::Integer(state),
    ];
    while Instant::now() < until {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let mut tries = Tries::new(&store, "a claim could not be given back");
        let Ok(session) = tries.session().await else {
            continue;
        };
        // The lost session holds the locks as long as its commit can still happen.
        let given = tries.run(session, Purpose::Commit, |batch, _| {
            let opened = batch.begin_short();
            opened
                .try_locks(&store, Step::LockKey, &claim)
                .call(Step::GiveBack, &arguments)
                .steps([Step::Commit])
        });
        match given.await {
            Ok(Outcome::Through(session, _)) => return session.release(),
            Ok(Outcome::Raised(mut session, _)) => {
                if tries.roll_back(&mut session).await.is_ok() {
                    session.release();
                }
            }
            Err(error) => tracing::debug!(%error, "a claim could not be given back yet"),
        }
    }
    tracing::warn!(
        tool = &*claim.call.tool,
        "a claim whose answer was lost could not be given back; it may be in doubt"
    );
}

fn claimed(claim: &Claim, row: &PgRow) -> Result<Lease, sqlx::Error> {
    let (token, origin) = (row.try_get(0)?, row.try_get(1)?);
    Ok(Lease::new(claim.id, token).after(origin, attempts(row, 2)?))
}
