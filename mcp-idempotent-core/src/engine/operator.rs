//! The operator's hand.

use super::{Engine, secret::TOOL};
use crate::{
    fingerprint::RecordId,
    store::{Audit, OperatorStore, RecordInfo, RecordQuery, Resolution, Resolved, StoreError},
};

impl<S: OperatorStore> Engine<S> {
    /// Lists the records of the store, of every application in it, oldest first and without their
    /// results. The records that say which secret an application has are left out.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    pub async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        let mut query = query.clone();
        loop {
            let mut page = self.inner.store.list(&query).await?;
            let (listed, last) = (page.len(), page.last().map(RecordInfo::cursor));
            page.retain(|record| &*record.tool != TOOL);
            // An empty page would be taken for the last one.
            if !page.is_empty() || listed == 0 || query.tool.as_deref() == Some(TOOL) {
                return Ok(page);
            }
            query.after = last;
        }
    }

    /// One record, with its result.
    ///
    /// # Errors
    ///
    /// The store could not be asked. Nothing was changed.
    pub async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.inner.store.show(id).await
    }

    /// Resolves a record that is in doubt or in progress, under the token that was seen in it. The
    /// record says from then on who did it, when and why, and has a new token: an attempt that is
    /// still alive is fenced, and its handler's token fires with its next heartbeat.
    ///
    /// # Errors
    ///
    /// The store could not be asked; after a lost connection the record may be resolved.
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
