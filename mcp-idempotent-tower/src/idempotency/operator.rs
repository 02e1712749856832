//! What an operator can do with records, and the sweep.

use mcp_idempotent_core::{
    Audit, HandlerResult as _, OperatorStore, RecordId, RecordInfo, RecordQuery, Resolution,
    Resolved, ResultKind, Store, StoreError, SweepSettings, Sweeper, store::Completion,
};
use rmcp::{ErrorData, handler::server::tool::IntoCallToolResult};

use super::Idempotency;
use crate::call::result::Handled;

impl<S: OperatorStore> Idempotency<S> {
    /// Lists the records of the store, of every application in it, oldest first and without their
    /// results.
    ///
    /// # Errors
    ///
    /// The store could not be queried. Nothing was changed.
    pub async fn list(&self, query: &RecordQuery) -> Result<Vec<RecordInfo>, StoreError> {
        self.engine.list(query).await
    }

    /// Counts this application's records in doubt, up to 1000. With the feature `metrics` it reports their
    /// number as the gauge [`RECORDS_IN_DOUBT`](crate::telemetry::RECORDS_IN_DOUBT), which changes only then.
    ///
    /// # Errors
    ///
    /// The store could not be asked. The gauge stays what it was.
    pub async fn count_in_doubt(&self) -> Result<u32, StoreError> {
        self.engine.count_in_doubt().await
    }

    /// One record, with its result.
    ///
    /// # Errors
    ///
    /// The store could not be queried. Nothing was changed.
    pub async fn show(&self, id: RecordId) -> Result<Option<RecordInfo>, StoreError> {
        self.engine.show(id).await
    }

    /// Resolves a record that is in doubt or in progress, if it still has this token, and writes down who
    /// did it, when and why. An attempt that is still alive is fenced.
    ///
    /// ```
    /// # use mcp_idempotent_tower::{Audit, Idempotency, MemoryStore, RecordQuery, RecordStatus, Resolution, Resolved};
    /// # async fn look(idempotency: Idempotency<MemoryStore>) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut query = RecordQuery::default();
    /// query.status = Some(RecordStatus::InDoubt);
    /// for record in idempotency.list(&query).await? {
    ///     // The payment provider's log says that nothing was charged.
    ///     let audit = Audit::new("on-call", "not in the provider's log")?;
    ///     let resolved = idempotency
    ///         .resolve(record.id, record.token, &Resolution::NotCommitted, &audit)
    ///         .await?;
    ///     assert!(matches!(resolved, Resolved::Done(_)), "the record has changed: look again");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The store could not be queried; after a lost connection the record may be resolved.
    pub async fn resolve(
        &self,
        id: RecordId,
        token: i64,
        resolution: &Resolution,
        audit: &Audit,
    ) -> Result<Resolved, StoreError> {
        self.engine.resolve(id, token, resolution, audit).await
    }
}

impl<S: Store> Idempotency<S> {
    /// The resolution of a call that took effect, with the result for a retry: anything that its tool can
    /// return. The result is kept for the retention in the server's policy.
    ///
    /// # Errors
    ///
    /// What was given is an error or an unfinished answer, not a result.
    pub fn committed_with(&self, result: impl IntoCallToolResult) -> Result<Resolution, ErrorData> {
        let handled = Handled::by_author(result.into_call_tool_result());
        if !matches!(
            handled.kind(),
            ResultKind::Success | ResultKind::ErrorResult
        ) {
            return Err(match handled.result {
                Err(error) => error,
                Ok(_) => ErrorData::invalid_params("an unfinished answer is not a result", None),
            });
        }
        let response = handled
            .encode()
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let policy = &self.settings().policy;
        let response = (response.len() <= policy.max_result_bytes).then_some(response);
        Ok(Resolution::Committed(Completion::new(
            response,
            policy.retention,
        )))
    }

    /// Removes records past their retention in the background, until the returned value or the last clone
    /// of this handle is dropped. Without a sweep the store keeps growing.
    pub fn sweep_in_background(&self, settings: SweepSettings) -> Sweeper {
        self.engine.sweep_in_background(settings)
    }
}
