//! Listing and resolving records.

use super::Engine;
use crate::{
    fingerprint::RecordId,
    store::{
        Audit, CallInfo, OperatorStore, RecordInfo, RecordQuery, Resolution, Resolved, StoreError,
    },
};

impl<S: OperatorStore> Engine<S> {
    /// Lists the store's records, of all its applications, oldest first and without their results.
    /// Records of the engine's own, such as which secret an application has, are left out.
    ///
    /// # Errors
    ///
    /// The store could not be reached. Nothing was changed.
    pub async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let mut query = query.clone();
        loop {
            let mut page = self.inner.store.list(&query).await?;
            let (listed, last) = (page.len(), page.last().map(RecordInfo::cursor));
            page.retain(|record| !CallInfo::is_internal(&record.tool));
            // An empty page would look like the end of the list.
            let asked_for_own = query.tool.as_deref().is_some_and(CallInfo::is_internal);
            if !page.is_empty() || listed == 0 || asked_for_own {
                return Ok(page);
            }
            query.after = last;
        }
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
        tracing::info!(
            record = %id,
            token,
            resolution = resolution.kind().as_str(),
            who = &*audit.who,
            why = &*audit.why,
            ?resolved,
            "an operator resolved a record"
        );
        Ok(resolved)
    }
}
