//! What the expansion of `#[idempotent]` calls. Not part of the public interface: it changes
//! without notice.

use rmcp::model::JsonObject;

pub use crate::{
    call::Call,
    execute::{Outcome, run_in_transaction, run_under_lease},
    options::ToolOptions,
};

/// Whether an object schema names a property.
pub(crate) fn has_property(schema: &JsonObject, name: &str) -> bool {
    schema
        .get("properties")
        .and_then(|properties| properties.get(name))
        .is_some()
}
