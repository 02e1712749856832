//! The options of one annotated tool.

use std::sync::Arc;

use mcp_idempotent_core::{PolicyOverride, PolicyUse};

use crate::call::{ClassifyFn, Object, schema};

/// How a tool's effect and its record go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
#[expect(clippy::exhaustive_enums, reason = "the macro names it")]
pub enum Mode {
    /// They commit together.
    Transaction,
    /// The effect is outside the store.
    Lease,
}

/// What `#[idempotent(…)]` was given.
#[derive(Debug, Clone)]
#[doc(hidden)]
#[expect(clippy::exhaustive_structs, reason = "the macro builds it in a const")]
pub struct ToolOptions {
    pub mode: Mode,
    pub policy: PolicyOverride,
    /// The name of the key argument, if it is top-level.
    pub key_property: Option<&'static str>,
    /// The author's own input schema, if the options name arguments.
    pub input_schema: Option<fn() -> Arc<Object>>,
    /// The tool's output schema.
    pub output_schema: Option<fn() -> Arc<Object>>,
    /// Lease mode: the author's function that says what a result with `isError` means.
    pub classify: Option<ClassifyFn>,
}

impl ToolOptions {
    /// Without options, on a tool that takes the transaction.
    pub const TRANSACTION: Self = Self {
        mode: Mode::Transaction,
        policy: PolicyOverride::NONE,
        key_property: None,
        input_schema: None,
        output_schema: None,
        classify: None,
    };

    /// Without options, on a tool whose effect is outside the store.
    pub const LEASE: Self = Self {
        mode: Mode::Lease,
        ..Self::TRANSACTION
    };

    /// What its policy is checked for.
    pub(crate) fn policy_use(&self) -> PolicyUse {
        match self.mode {
            Mode::Transaction => PolicyUse::Transaction,
            // The macro takes `verify` only together with the function.
            Mode::Lease => PolicyUse::Lease { can_verify: true },
        }
    }

    /// An argument that the options name, and that the tool does not have.
    pub(crate) fn unknown_argument(&self) -> Option<&str> {
        let mut schema = self.input_schema?();
        if let Some(name) = self.key_property {
            schema = schema::with_key_property(schema, name, false);
        }
        schema::unknown_argument(&schema, &self.policy)
    }

    /// The name of a top-level key argument that the author's schema lacks. It is added to the schema, and
    /// removed before the arguments are parsed.
    pub(crate) fn added_argument(&self) -> Option<&'static str> {
        let name = self.key_property?;
        let schema = self.input_schema?();
        (!schema::has_property(&schema, name)).then_some(name)
    }
}
