//! Listing and resolving records.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    MemoryStore,
    records::{Records, State, Stored, after, completed, wall_clock, wall_clock_at},
};
use crate::{
    fingerprint::RecordId,
    scope::{Application, Scope},
    store::{
        Audit, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution, Resolved,
        ResolvedBy, StoreError,
    },
};

impl OperatorStore for MemoryStore {
    async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let now = Instant::now();
        let inner = self.lock();
        let mut found: Vec<_> = inner
            .records
            .iter()
            .map(|(id, stored)| stored.info(*id, now))
            .filter(|info| {
                let is = |wanted: &Option<Arc<str>>, found: Option<&Arc<str>>| {
                    wanted.is_none() || wanted.as_ref() == found
                };
                let begins = |prefix| info.key_prefix.as_deref().unwrap_or("").starts_with(prefix);
                query.status.is_none_or(|status| status == info.status)
                    && is(&query.tool, Some(&info.tool))
                    && is(&query.application, info.application.as_ref())
                    && is(&query.scope, info.scope.as_ref())
                    && query.visible_prefix().is_none_or(begins)
                    && query.after.is_none_or(|after| info.cursor() > after)
            })
            .collect();
        found.sort_unstable_by_key(RecordInfo::cursor);
        found.truncate(usize::try_from(query.limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        let now = Instant::now();
        let inner = self.lock();
        Ok(inner.records.get(&id).map(|stored| {
            let mut info = stored.info(id, now);
            if let State::Completed { response, .. } = &stored.state {
                info.response.clone_from(response);
            }
            info
        }))
    }

    async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        let (now, at) = (Instant::now(), wall_clock());
        let mut inner = self.lock();
        let Some(stored) = inner.records.get(&id) else {
            return Ok(Resolved::NotFound);
        };
        let open = matches!(
            stored.status(now),
            RecordStatus::InProgress | RecordStatus::InDoubt
        );
        if stored.token != token || !open {
            return Ok(Resolved::Changed);
        }
        let drawn = inner.next_token();
        resolve(&mut inner, id, drawn, resolution, audit, now);
        if let Some(stored) = inner.records.get_mut(&id) {
            stored.resolved = Some(ResolvedBy::new(
                resolution.kind(),
                audit.who.clone(),
                audit.why.clone(),
                at,
            ));
        }
        inner.due_by_state(id);
        Ok(Resolved::Done(at))
    }
}

fn resolve(
    inner: &mut Records,
    id: RecordId,
    token: i64,
    resolution: &Resolution,
    audit: &Audit,
    now: Instant,
) {
    let Some(stored) = inner.records.get_mut(&id) else {
        return;
    };
    stored.token = token;
    stored.state = match resolution {
        Resolution::Committed(completion) => {
            completed(completion, completion.retention, wall_clock(), now)
        }
        Resolution::NotCommitted => {
            stored.origin = None;
            State::Released {
                until: after(now, audit.kept),
            }
        }
        Resolution::Release => State::Released {
            until: after(now, audit.kept),
        },
    };
}

impl Stored {
    fn status(&self, now: Instant) -> RecordStatus {
        match &self.state {
            State::InProgress { lease_end } if *lease_end > now => RecordStatus::InProgress,
            State::InProgress { lease_end } if *lease_end + self.in_doubt_retention > now => {
                RecordStatus::InDoubt
            }
            State::InDoubt { expires, .. } if *expires > now => RecordStatus::InDoubt,
            State::Completed { expires, .. } if *expires > now => RecordStatus::Completed,
            State::Released { until } if *until > now => RecordStatus::Released,
            State::InProgress { .. }
            | State::InDoubt { .. }
            | State::Completed { .. }
            | State::Released { .. } => RecordStatus::Expired,
        }
    }

    fn info(&self, id: RecordId, now: Instant) -> RecordInfo {
        let status = self.status(now);
        let mut info = RecordInfo::new(
            id,
            self.fingerprint,
            status,
            self.call.tool.clone(),
            self.token,
            self.created_at,
        );
        info.origin = self.origin;
        info.application = self.application.as_ref().map(Application::to_shared);
        info.scope = self.call.scope.as_ref().map(Scope::to_shared);
        info.key_prefix.clone_from(&self.key_prefix);
        info.attempts = self.attempts;
        info.resolved.clone_from(&self.resolved);
        match &self.state {
            State::InProgress { lease_end } => {
                info.lease_until = Some(wall_clock_at(*lease_end, now));
                if status != RecordStatus::InProgress {
                    info.expires_at =
                        Some(wall_clock_at(*lease_end + self.in_doubt_retention, now));
                }
            }
            State::InDoubt { since, expires } => {
                info.completed_at = Some(*since);
                info.expires_at = Some(wall_clock_at(*expires, now));
            }
            State::Completed { at, expires, .. } => {
                info.completed_at = Some(*at);
                info.expires_at = Some(wall_clock_at(*expires, now));
            }
            State::Released { until } => info.expires_at = Some(wall_clock_at(*until, now)),
        }
        info
    }
}
