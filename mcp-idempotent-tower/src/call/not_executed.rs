//! An error that proves that nothing happened.

use rmcp::ErrorData;
use serde_json::{Map, Value};

use crate::wire;

/// Marks an error that proves that the handler did nothing: the outside call was never sent, or
/// was refused before it could act. In lease mode it frees the key, whatever `on_error` says.
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
    /// Marks `error`. The mark is removed before the error is sent. It is kept in `data`; a
    /// `data` that is no JSON object is put under `data` of one.
    #[must_use]
    pub fn mark(mut error: ErrorData) -> ErrorData {
        let mut data = Map::new();
        data.insert(
            wire::NOT_EXECUTED.into(),
            error.data.take().unwrap_or(Value::Null),
        );
        error.data = Some(Value::Object(data));
        error
    }

    /// Removes the mark, and answers whether there was one.
    pub(crate) fn unmark(error: &mut ErrorData) -> bool {
        let Some(Value::Object(data)) = &mut error.data else {
            return false;
        };
        let Some(original) = data.remove(wire::NOT_EXECUTED) else {
            return false;
        };
        error.data = (!original.is_null()).then_some(original);
        true
    }
}
