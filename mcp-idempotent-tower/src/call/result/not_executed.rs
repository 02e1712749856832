//! Failures that prove that nothing happened.

use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult},
};
use serde_json::{Value, json};

use super::seal::seal_of;
use crate::{call::ToolResult, wire};

/// Marks a failure as proof that the handler did nothing: the outside call was never sent, or was refused
/// before it could act. Such a failure frees the key, whatever `on_error` says.
///
/// ```
/// # use mcp_idempotent_tower::NotExecuted;
/// # use rmcp::{ErrorData, model::{CallToolResult, ContentBlock}};
/// fn check(amount: i64) -> Result<(), ErrorData> {
///     if amount <= 0 {
///         return Err(NotExecuted::mark(ErrorData::invalid_params("amount must be positive", None)));
///     }
///     Ok(())
/// }
/// # assert!(check(0).is_err());
///
/// // A result with `isError`, which a model gets to see.
/// fn closed() -> CallToolResult {
///     NotExecuted::mark(CallToolResult::error(vec![ContentBlock::text("The bank is closed until 8.")]))
/// }
/// # assert_eq!(closed().is_error, Some(true));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct NotExecuted;

impl NotExecuted {
    /// Marks an error, or a result with `isError`. Do not change it afterwards.
    ///
    /// A mark holds for the handler that makes it, in its own task, for one attempt. So a failure from
    /// another tool, server, attempt or process cannot free a key, and a mark that is made in a task that
    /// the handler spawned, or outside of a protected call, has no effect. A function that the handler
    /// calls itself, such as another tool's `…_unprotected`, marks for the handler: if the handler acted
    /// before, do not pass its failure on.
    ///
    /// The mark is removed before the failure is sent.
    #[must_use]
    pub fn mark<F: Failure>(mut failure: F) -> F {
        Self::mark_in_place(&mut failure);
        failure
    }

    fn mark_in_place(failure: &mut impl Failure) {
        // Outside of a run nothing would remove the mark.
        if let Some(seal) = seal_of(wire::NOT_EXECUTED, &failure.contents()) {
            failure.put(seal);
        }
    }

    /// As [`mark`](Self::mark), for the answer of a handler.
    pub(crate) fn mark_answer(result: &mut ToolResult) {
        match result {
            Ok(CallToolResponse::Complete(result)) => Self::mark_in_place(result),
            Ok(_) => {}
            Err(error) => Self::mark_in_place(error),
        }
    }

    /// Removes the mark, and says whether there was one.
    pub(crate) fn unmark(result: &mut ToolResult) -> bool {
        match result {
            Ok(CallToolResponse::Complete(result)) => {
                let is_marked = Self::unmark_failure(result);
                if is_marked && result.is_error != Some(true) {
                    tracing::error!("a result without `isError` was marked as not executed");
                    return false;
                }
                is_marked
            }
            Ok(_) => false,
            Err(error) => Self::unmark_failure(error),
        }
    }

    pub(crate) fn unmark_failure(failure: &mut impl Failure) -> bool {
        let Some(seal) = failure.take() else {
            return false;
        };
        let is_ours = seal_of(wire::NOT_EXECUTED, &failure.contents()).as_ref() == Some(&seal);
        if !is_ours {
            failure.put(seal);
        }
        is_ours
    }
}

/// What [`NotExecuted`] can mark: an [`ErrorData`] or a [`CallToolResult`].
pub trait Failure: private::Failure {}

impl<T: private::Failure> Failure for T {}

mod private {
    use serde_json::Value;

    pub trait Failure {
        /// What the seal is for.
        fn contents(&self) -> Value;

        fn put(&mut self, seal: Value);

        fn take(&mut self) -> Option<Value>;
    }
}

impl private::Failure for ErrorData {
    fn contents(&self) -> Value {
        self.data.clone().unwrap_or_default()
    }

    fn put(&mut self, seal: Value) {
        let data = self.data.take().unwrap_or_default();
        self.data = Some(json!({ wire::NOT_EXECUTED: { "seal": seal, "data": data } }));
    }

    fn take(&mut self) -> Option<Value> {
        let members = self.data.as_mut()?.as_object_mut()?;
        let is_alone = members.len() == 1;
        let mark = members.get_mut(wire::NOT_EXECUTED)?.as_object_mut()?;
        if !(is_alone && mark.len() == 2 && mark.contains_key("data")) {
            return None;
        }
        let seal = mark.remove("seal")?;
        let data = mark.remove("data").unwrap_or_default();
        self.data = (!data.is_null()).then_some(data);
        Some(seal)
    }
}

impl private::Failure for CallToolResult {
    fn contents(&self) -> Value {
        json!([self.content, self.structured_content])
    }

    fn put(&mut self, seal: Value) {
        let meta = self.meta.get_or_insert_default();
        meta.insert(wire::NOT_EXECUTED.into(), seal);
    }

    fn take(&mut self) -> Option<Value> {
        let meta = self.meta.as_mut()?;
        let seal = meta.remove(wire::NOT_EXECUTED)?;
        if meta.is_empty() {
            self.meta = None;
        }
        Some(seal)
    }
}
