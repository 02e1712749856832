//! Lease mode: a claim before the handler starts, and its guarded ends.

use std::time::Duration;

use super::{
    RedisStore,
    reply::{Reply, read},
    script::{self, Call},
};
use crate::{
    policy::OnExpired,
    record::{Record, Timestamp},
    store::{CallInfo, Claim, Claimed, Completion, Lease, LeaseEnd, Reach, Store, StoreError},
};

/// How many records one script may remove, so that it holds the server for at most a few
/// milliseconds.
const SWEEP_BATCH: u32 = 100;
/// How many records one script looks at.
const LOOKED_AT: usize = 500;

impl Store for RedisStore {
    fn reach(&self) -> Reach {
        Reach::Network
    }

    async fn look_up(&self, claim: &Claim) -> Result<Option<Record>, StoreError> {
        let call = self
            .on_record(&script::LOOK_UP, claim.id)
            .arg(tombstones(claim));
        let answer = self.run("looking up a record", &call).await?;
        Reply::new(answer)?.map(Reply::record).transpose()
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed<Lease>, StoreError> {
        let call = self
            .on_record(&script::CLAIM, claim.id)
            .arg(claim.id)
            .arg(tombstones(claim))
            .bytes(claim.fingerprint.to_stored())
            .micros(claim.lease)
            .micros(claim.in_doubt_retention)
            .mark()
            .bytes(&*claim.call.tool)
            .bytes(claim.application().unwrap_or_default())
            .bytes(claim.scope().unwrap_or_default())
            .bytes(claim.key_prefix.as_deref().unwrap_or_default());
        let mut answer = Reply::expect(self.run("claiming", &call).await?)?;
        if answer.next::<String>()? == "lease" {
            return Ok(Claimed::New(lease(claim, &mut answer)?));
        }
        Ok(Claimed::Found(Reply::expect(answer.value()?)?.record()?))
    }

    async fn take_over(&self, claim: &Claim, token: i64) -> Result<Option<Lease>, StoreError> {
        let call = self
            .on_record(&script::TAKE_OVER, claim.id)
            .arg(claim.id)
            .arg(token)
            .bytes(claim.fingerprint.to_stored())
            .micros(claim.lease)
            .micros(claim.in_doubt_retention)
            .mark();
        let answer = self.run("taking over", &call).await?;
        Reply::new(answer)?
            .map(|mut answer| lease(claim, &mut answer))
            .transpose()
    }

    async fn renew(&self, lease: &Lease, period: Duration) -> Result<LeaseEnd, StoreError> {
        let call = self.on_lease(&script::RENEW, lease).micros(period);
        self.change("renewing a lease", &call).await
    }

    async fn complete(
        &self,
        lease: &Lease,
        completion: Completion,
    ) -> Result<LeaseEnd, StoreError> {
        let call = self.on_lease(&script::COMPLETE, lease).mark();
        let call = match &completion.guard {
            Some(guard) => call
                .with(&self.shared.prefix, guard.id)
                .arg(guard.id)
                .arg(guard.token)
                .micros(completion.retention_of_guard()),
            None => call.bytes("").bytes("").bytes(""),
        };
        let call = call.completion(&completion);
        self.change("completing", &call).await
    }

    async fn release(&self, lease: &Lease, keep_origin: Duration) -> Result<LeaseEnd, StoreError> {
        let call = self
            .on_lease(&script::RELEASE, lease)
            .mark()
            .micros(keep_origin);
        self.change("releasing", &call).await
    }

    async fn abandon(&self, lease: &Lease) -> Result<LeaseEnd, StoreError> {
        let call = self.on_lease(&script::ABANDON, lease).mark();
        self.change("abandoning", &call).await
    }

    async fn has_unsettled(&self, age: Duration) -> Result<bool, StoreError> {
        for looked_at in (0..).step_by(LOOKED_AT) {
            let call = self
                .on_all(&script::UNSETTLED)
                .micros(age)
                .arg(looked_at)
                .arg(LOOKED_AT)
                .arg(CallInfo::INTERNAL);
            let found: String = read(self.run("looking for open calls", &call).await?)?;
            if found != "more" {
                return Ok(found == "yes");
            }
        }
        Ok(false)
    }

    async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        let mut left = limit;
        while left > 0 {
            let batch = left.min(SWEEP_BATCH);
            let call = self.on_all(&script::SWEEP).arg(batch);
            let swept: u32 = read(self.run("sweeping", &call).await?)?;
            left -= swept.min(left);
            if swept < batch {
                break;
            }
        }
        Ok(u64::from(limit - left))
    }
}

impl RedisStore {
    fn on_lease(&self, script: &'static script::Script, lease: &Lease) -> Call {
        self.on_record(script, lease.id)
            .arg(lease.id)
            .arg(lease.token)
    }

    async fn change(&self, doing: &str, call: &Call) -> Result<LeaseEnd, StoreError> {
        let at: Option<i64> = read(self.run(doing, call).await?)?;
        Ok(at.map_or(LeaseEnd::Fenced, |at| {
            LeaseEnd::Done(Timestamp::from_micros(at))
        }))
    }
}

impl Call {
    pub(super) fn completion(self, completion: &Completion) -> Self {
        let call = self
            .micros(completion.retention)
            .micros(completion.tombstone);
        match &completion.response {
            Some(response) => call.bytes(&**response),
            None => call,
        }
    }
}

fn tombstones(claim: &Claim) -> u8 {
    u8::from(claim.on_expired == OnExpired::Refuse)
}

fn lease(claim: &Claim, answer: &mut Reply) -> Result<Lease, StoreError> {
    let (token, origin, attempts) = (answer.next()?, answer.next()?, answer.next()?);
    Ok(Lease::new(claim.id, token).after(origin, attempts))
}
