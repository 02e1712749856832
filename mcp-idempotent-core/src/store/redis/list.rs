//! Listing: the records of all buckets, merged by age.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::{
    RedisStore,
    operator::{info, to_stored},
    reply::Reply,
    script,
};
use crate::{
    fingerprint::RecordId,
    record::Timestamp,
    store::{RecordInfo, RecordQuery, RecordStatus, StoreError},
};

/// How many records one script looks at.
const LOOKED_AT: u32 = 200;
/// How many buckets are asked at once.
const ASKED_AT_ONCE: usize = 32;

pub(super) async fn list(
    store: &RedisStore,
    query: &RecordQuery,
) -> Result<Vec<RecordInfo>, StoreError> {
    let mut indexes: Vec<_> = (0..=u8::MAX)
        .flat_map(|bucket| {
            names(query.status)
                .iter()
                .map(move |name| Index::new(bucket, name, query.after))
        })
        .collect();
    // A page takes few records from each bucket, unless a status or a tool is looked for.
    let first = query.limit.div_ceil(64).clamp(1, LOOKED_AT);
    indexes = stream::iter(indexes)
        .map(|mut index| async move {
            index.look(store, query, first).await?;
            Ok::<_, StoreError>(index)
        })
        .buffered(ASKED_AT_ONCE)
        .try_collect()
        .await?;
    let mut heads: BinaryHeap<_> = (0..indexes.len())
        .filter_map(|position| indexes[position].head(position))
        .collect();
    let mut page = Vec::new();
    while let Some(Reverse((_, position))) = heads.pop() {
        if page.len() >= usize::try_from(query.limit).unwrap_or(usize::MAX) {
            break;
        }
        let index = &mut indexes[position];
        page.extend(index.found.pop_front());
        if index.found.is_empty() {
            index.look(store, query, LOOKED_AT).await?;
        }
        heads.extend(index.head(position));
    }
    Ok(page)
}

/// Records that have expired may have had a result or not.
const fn names(status: Option<RecordStatus>) -> &'static [&'static str] {
    match status {
        Some(RecordStatus::InProgress | RecordStatus::InDoubt | RecordStatus::Released) => {
            &["open"]
        }
        Some(RecordStatus::Completed) => &["completed"],
        Some(RecordStatus::Expired) | None => &["open", "completed"],
    }
}

/// One index of one bucket, read as far as it had to be.
struct Index {
    bucket: u8,
    name: &'static str,
    found: VecDeque<RecordInfo>,
    /// Where to go on; `None` at the end.
    after: Option<(i64, String)>,
}

impl Index {
    fn new(bucket: u8, name: &'static str, after: Option<(Timestamp, RecordId)>) -> Self {
        Self {
            bucket,
            name,
            found: VecDeque::new(),
            after: Some(after.map_or((0, String::new()), |(time, id)| {
                (time.as_micros(), id.to_string())
            })),
        }
    }

    /// Looks for records that match until there is one, or none is left.
    async fn look(
        &mut self,
        store: &RedisStore,
        query: &RecordQuery,
        mut limit: u32,
    ) -> Result<(), StoreError> {
        while let (true, Some((time, id))) = (self.found.is_empty(), &self.after) {
            let call = store
                .on_bucket(&script::LIST, self.bucket)
                .arg(self.name)
                .arg(time)
                .arg(id)
                .arg(limit)
                .arg(
                    query
                        .status
                        .map(to_stored)
                        .map_or(String::new(), |status| status.to_string()),
                )
                .bytes(query.tool.as_deref().unwrap_or_default());
            let mut answer = Reply::expect(store.run("listing", &call).await?)?;
            let mut cursor = Reply::expect(answer.value()?)?.rest();
            self.after = match (cursor.next(), cursor.next()) {
                (Some(time), Some(id)) => {
                    let time: String = super::reply::read(time)?;
                    let time = time.parse().map_err(|_| super::reply::unreadable())?;
                    Some((time, super::reply::read(id)?))
                }
                _ => None,
            };
            for record in Reply::expect(answer.value()?)?.rest() {
                self.found.push_back(info(record)?);
            }
            limit = LOOKED_AT;
        }
        Ok(())
    }

    fn head(&self, position: usize) -> Option<Reverse<((Timestamp, RecordId), usize)>> {
        let head = self.found.front()?;
        Some(Reverse((head.cursor(), position)))
    }
}
