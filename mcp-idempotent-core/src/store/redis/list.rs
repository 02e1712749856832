//! Listing records, oldest first.

use super::{
    RedisStore,
    operator::{info, to_stored},
    reply::{Reply, read, unreadable},
    script,
};
use crate::store::{RecordInfo, RecordQuery, RecordStatus, StoreError};

/// How many records one script looks at.
const LOOKED_AT: u32 = 200;

pub(super) async fn list(
    store: &RedisStore,
    query: &RecordQuery,
) -> Result<Vec<RecordInfo>, StoreError> {
    let status = query.status.map(to_stored);
    let status = status.map_or(String::new(), |status| status.to_string());
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let (mut time, mut id) = query.after.map_or((0, String::new()), |(time, id)| {
        (time.as_micros(), id.to_string())
    });
    let mut page = Vec::new();
    while page.len() < limit {
        let call = store
            .on_all(&script::LIST)
            .arg(index(query.status))
            .arg(time)
            .bytes(&*id)
            .arg(LOOKED_AT)
            .bytes(status.as_str())
            .bytes(query.tool.as_deref().unwrap_or_default())
            .bytes(query.application.as_deref().unwrap_or_default())
            .bytes(query.scope.as_deref().unwrap_or_default())
            .bytes(query.visible_prefix().unwrap_or_default());
        let mut answer = Reply::expect(store.run("listing", &call).await?)?;
        let mut cursor = Reply::expect(answer.value()?)?.rest();
        for record in Reply::expect(answer.value()?)?.rest() {
            page.push(info(record)?);
        }
        let (Some(last), Some(last_id)) = (cursor.next(), cursor.next()) else {
            break;
        };
        let last: String = read(last)?;
        (time, id) = (last.parse().map_err(|_| unreadable())?, read(last_id)?);
    }
    page.truncate(limit);
    Ok(page)
}

/// Records without a result are few, so they have an index of their own.
const fn index(status: Option<RecordStatus>) -> &'static str {
    match status {
        Some(RecordStatus::InProgress | RecordStatus::InDoubt | RecordStatus::Released) => "open",
        Some(RecordStatus::Completed | RecordStatus::Expired) | None => "records",
    }
}
