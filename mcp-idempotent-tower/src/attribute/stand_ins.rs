//! What rmcp's macro finds where it looks for the author's types: schemas, and the tool's `_meta`.

use std::{borrow::Cow, fmt, marker::PhantomData, sync::Arc};

use mcp_idempotent_core::KeyRequirement;
use rmcp::{
    handler::server::{
        common::{FromContextPart, schema_for_empty_input, schema_for_input, schema_for_output},
        tool::{IntoCallToolResult, ToolCallContext},
    },
    model::{JsonObject, MetaObject},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};

pub use rmcp::{ErrorData, model::CallToolResponse};

use super::options::ToolOptions;
use crate::{
    call::{contract, schema},
    wire,
};

/// Stands in for the author's `Parameters<…>` where rmcp's macro looks for the input schema. It takes
/// nothing from the call: the author's own is extracted after the claim.
pub struct Parameters<T>(PhantomData<fn() -> T>);

impl<S, T> FromContextPart<ToolCallContext<'_, S>> for Parameters<T> {
    fn from_context_part(_: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        Ok(Self(PhantomData))
    }
}

impl<T> fmt::Debug for Parameters<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parameters")
    }
}

// Everything is delegated: with its own schema id, this type would be listed beside the author's.
impl<T: JsonSchema> JsonSchema for Parameters<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Stands in for the author's `Json<…>` where rmcp's macro looks for the output schema.
pub struct Json<T> {
    response: CallToolResponse,
    schema: PhantomData<fn() -> T>,
}

impl<T> Json<T> {
    /// The answer of a tool with structured output.
    pub const fn new(response: CallToolResponse) -> Self {
        Self {
            response,
            schema: PhantomData,
        }
    }
}

impl<T> IntoCallToolResult for Json<T> {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        Ok(self.response)
    }
}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Json").field(&self.response).finish()
    }
}

/// The input schema that rmcp's macro finds for a `Parameters<…>`.
///
/// # Panics
///
/// The schema does not describe an object. rmcp's own expansion panics likewise.
pub fn input_schema<P: JsonSchema + 'static>() -> Arc<JsonObject> {
    schema_for_input::<P>().unwrap_or_else(|error| {
        panic!(
            "Invalid input schema for `{}`: {error}",
            std::any::type_name::<P>()
        )
    })
}

/// The input schema that rmcp's macro gives a tool without parameters.
pub fn empty_input_schema() -> Arc<JsonObject> {
    schema_for_empty_input()
}

/// The output schema that rmcp's macro finds for a `Json<T>`.
pub fn output_schema<T: JsonSchema + 'static>() -> Arc<JsonObject> {
    schema_for_output::<T>()
}

/// The author's input schema, with the key argument added if it lacks it.
pub fn with_key_argument(options: &ToolOptions) -> Arc<JsonObject> {
    let schema = options
        .input_schema
        .map_or_else(empty_input_schema, |of| of());
    let Some(name) = options.key_property else {
        return schema;
    };
    let required = options.policy.key == Some(KeyRequirement::Required);
    schema::with_key_property(schema, name, required)
}

/// The tool's `_meta`: what the author gave, and the contract.
pub fn meta(options: &ToolOptions, author: Option<MetaObject>) -> MetaObject {
    let mut meta = author.unwrap_or_default();
    meta.insert(wire::CONTRACT.into(), contract::contract(options));
    meta
}
