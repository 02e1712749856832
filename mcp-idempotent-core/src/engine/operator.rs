//! Listing and resolving records.

use super::Engine;
use crate::{
    fingerprint::RecordId,
    store::{
        Audit, CallInfo, OperatorStore, RecordInfo, RecordQuery, RecordStatus, Resolution,
        Resolved, StoreError,
    },
    telemetry,
};

impl<S: OperatorStore> Engine<S> {
    /// Lists the store's records, of all its applications, oldest first and without their results.
    /// Records of the engine's own, such as which secret an application has, are left out.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    pub async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        if query.tool.as_deref().is_some_and(CallInfo::is_internal) {
            return self.inner.store.list(query).await;
        }
        let limit = query.limit;
        let mut query = query.clone();
        let mut calls = Vec::new();
        // A page with fewer calls than were asked for would look like the last one.
        loop {
            let page = self.inner.store.list(&query).await?;
            query.after = page.last().map(RecordInfo::cursor);
            let is_last = u32::try_from(page.len()).unwrap_or(u32::MAX) < query.limit;
            calls.extend(
                page.into_iter()
                    .filter(|record| !CallInfo::is_internal(&record.tool)),
            );
            let found = u32::try_from(calls.len()).unwrap_or(u32::MAX);
            if is_last || found >= limit {
                return Ok(calls);
            }
            query.limit = limit - found;
        }
    }

    /// Counts this application's records in doubt, and reports their number as the gauge
    /// [`RECORDS_IN_DOUBT`](crate::telemetry::RECORDS_IN_DOUBT). It stops at 1000, because nobody
    /// needs to know how many more there are. Call it now and then, such as once a minute in one
    /// process: the gauge does not change by itself.
    ///
    /// # Errors
    ///
    /// The store could not be reached. The gauge stays what it was.
    pub async fn count_in_doubt(&self) -> Result<u32, StoreError> {
        const MOST: u32 = 1000;
        let application = &self.inner.application;
        let query = RecordQuery {
            status: Some(RecordStatus::InDoubt),
            application: Some(application.to_shared()),
            limit: MOST,
            ..RecordQuery::default()
        };
        let listed = self.list(&query).await?.len();
        let counted = u32::try_from(listed).unwrap_or(MOST);
        telemetry::in_doubt(application, counted);
        Ok(counted)
    }

    /// Reads one record, with its result.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    pub async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.inner.store.show(id).await
    }

    /// Resolves a record that is in doubt or in progress under the token that was seen in it. From
    /// then on the record says who resolved it, when and why, and has a new token. An attempt that
    /// is still alive is fenced, and its handler's cancellation token fires at its next heartbeat.
    ///
    /// # Errors
    ///
    /// The store could not be reached. After a lost connection, the record may have been resolved.
    pub async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        let resolved = self
            .inner
            .store
            .resolve(id, token, resolution, audit)
            .await?;
        let (who, why) = (&*audit.who, &*audit.why);
        let resolution = resolution.kind().as_str();
        if let Resolved::Done(_) = resolved {
            tracing::info!(record = %id, token, resolution, who, why, "an operator resolved a record");
        } else {
            tracing::info!(
                record = %id,
                token,
                resolution,
                who,
                why,
                ?resolved,
                "an operator did not resolve a record: it has changed, or there is none"
            );
        }
        Ok(resolved)
    }
}
