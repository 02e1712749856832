//! Showing and resolving records.

use std::sync::Arc;

use redis::{FromRedisValue as _, Value};

use super::{
    RedisStore,
    reply::{COMPLETED, IN_DOUBT, IN_PROGRESS, RELEASED, Reply, TOMBSTONE, read, unreadable},
    script,
};
use crate::{
    fingerprint::RecordId,
    record::Timestamp,
    store::{
        Audit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, ResolutionKind,
        Resolved, ResolvedBy, StoreError,
    },
};

impl OperatorStore for RedisStore {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        super::list::list(self, query).await
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let call = self.on_record(&script::SHOW, id).arg(id);
        let Some(mut answer) = Reply::new(self.run("showing a record", &call).await?)? else {
            return Ok(None);
        };
        let mut info = info(answer.value()?)?;
        info.response = answer.response()?;
        Ok(Some(info))
    }

    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        let call = self
            .on_record(&script::RESOLVE, id)
            .arg(id)
            .arg(token)
            .mark()
            .arg(resolution.kind().to_stored())
            .bytes(&*audit.who)
            .bytes(&*audit.why);
        let call = match resolution {
            Resolution::Committed(completion) => call.completion(completion),
            Resolution::NotCommitted | Resolution::Release => call.micros(audit.kept).arg(0),
        };
        match self.run("resolving", &call).await? {
            Value::Int(at) => Ok(Resolved::Done(Timestamp::from_micros(at))),
            said => match String::from_redis_value(said).as_deref() {
                Ok("changed") => Ok(Resolved::Changed),
                Ok("not found") => Ok(Resolved::NotFound),
                _ => Err(unreadable()),
            },
        }
    }
}

/// Reads what the function `info` of the scripts returned.
pub(super) fn info(value: Value) -> Result<RecordInfo, StoreError> {
    let mut answer = Reply::expect(value)?;
    let id: String = answer.next()?;
    let id = id.parse().map_err(|_| unreadable())?;
    let fingerprint = answer.fingerprint()?;
    let status = from_stored(answer.next()?).ok_or_else(unreadable)?;
    let (token, origin, attempts) = (answer.next()?, answer.next()?, answer.next()?);
    let created_at = answer.time()?;
    let times = [answer.times()?, answer.times()?, answer.times()?];
    let tool: String = answer.next()?;
    let mut info = RecordInfo::new(id, fingerprint, status, tool, token, created_at);
    (info.origin, info.attempts) = (origin, attempts);
    [info.lease_until, info.completed_at, info.expires_at] = times;
    info.application = answer.next::<Option<String>>()?.map(Into::into);
    info.scope = answer.next::<Option<String>>()?.map(Into::into);
    info.key_prefix = answer.next::<Option<String>>()?.map(Into::into);
    let kind = answer.next::<Option<i16>>()?;
    let (who, why, at) = (answer.value()?, answer.value()?, answer.value()?);
    if let Some(kind) = kind {
        let kind = ResolutionKind::from_stored(kind).ok_or_else(unreadable)?;
        let (who, why): (String, String) = (read(who)?, read(why)?);
        let at = Timestamp::from_micros(read(at)?);
        info.resolved = Some(ResolvedBy::new(kind, Arc::<str>::from(who), why, at));
    }
    Ok(info)
}

pub(super) const fn to_stored(status: RecordStatus) -> i64 {
    match status {
        RecordStatus::InProgress => IN_PROGRESS,
        RecordStatus::Completed => COMPLETED,
        RecordStatus::InDoubt => IN_DOUBT,
        RecordStatus::Expired => TOMBSTONE,
        RecordStatus::Released => RELEASED,
    }
}

fn from_stored(status: i64) -> Option<RecordStatus> {
    [
        RecordStatus::InProgress,
        RecordStatus::Completed,
        RecordStatus::InDoubt,
        RecordStatus::Expired,
        RecordStatus::Released,
    ]
    .into_iter()
    .find(|known| to_stored(*known) == status)
}
