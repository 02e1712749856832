//! Errors that prove that nothing happened.

use rmcp::ErrorData;
use serde_json::{Value, json};

use super::seal::seal_of;
use crate::wire;

/// Marks an error as proof that the handler did nothing: the outside call was never sent, or was refused
/// before it could act. In lease mode such an error frees the key, whatever `on_error` says.
///
/// ```
/// # use mcp_idempotent_tower::NotExecuted;
/// # use rmcp::ErrorData;
/// fn check(amount: i64) -> Result<(), ErrorData> {
///     if amount <= 0 {
///         return Err(NotExecuted::mark(ErrorData::invalid_params("amount must be positive", None)));
///     }
///     Ok(())
/// }
/// # assert!(check(0).is_err());
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct NotExecuted;

impl NotExecuted {
    /// Marks `error`. Do not change it afterwards: the mark is only valid for the `data` that the error
    /// has now, and only in this process, so an error from another process cannot free a key. It is not bound
    /// to a call: do not pass on a marked error that another tool of this process returned. The mark is kept
    /// in `data` and removed before the error is sent.
    #[must_use]
    pub fn mark(mut error: ErrorData) -> ErrorData {
        Self::mark_in_place(&mut error);
        error
    }

    pub(crate) fn mark_in_place(error: &mut ErrorData) {
        let data = error.data.take().unwrap_or(Value::Null);
        let seal = seal_of(wire::NOT_EXECUTED, &data);
        error.data = Some(json!({ wire::NOT_EXECUTED: { "seal": seal, "data": data } }));
    }

    /// Removes the mark, and says whether there was one.
    pub(crate) fn unmark(error: &mut ErrorData) -> bool {
        let Some(Value::Object(data)) = &mut error.data else {
            return false;
        };
        let Some(Value::Object(mark)) = data.get_mut(wire::NOT_EXECUTED) else {
            return false;
        };
        let (Some(seal), Some(original)) = (mark.get("seal"), mark.get("data")) else {
            return false;
        };
        if *seal != seal_of(wire::NOT_EXECUTED, original) {
            return false;
        }
        let original = mark.remove("data").unwrap_or_default();
        error.data = (!original.is_null()).then_some(original);
        true
    }
}
