//! What every call goes through, whichever door it came through: the attribute, the layer or the relay.
//!
//! Four rooms, and [`tool_call`], the call itself:
//!
//! | Where is … | |
//! | --- | --- |
//! | which call it is | [`identity`]: its [`key`], its [`scope`], and what a run has to know of it ([`incoming`]) |
//! | the whole run | [`run`], one function for each mode, and its [`rules`]; its attempts: `protected`, the engine's, and `unprotected` |
//! | what the handler is given | [`attempt`] (lease mode), [`tx`] (a transaction), [`after_commit`] |
//! | how the handler is started and told to stop | [`run`]: `handler` |
//! | how it ended, and what its caller gets | [`reply`] |
//! | a call in doubt | [`verify`] |
//! | what the caller is told | [`result`], in the form for its [`reader`]; [`refusal`] |
//! | who said it: the handler, or another server | [`entries`], [`seal`], [`provenance`], [`not_executed`] |
//! | what `tools/list` says | [`definition`], [`contract`], [`schema`] |

pub(crate) mod definition;
pub(crate) mod identity;
pub(crate) mod result;
pub(crate) mod run;
pub(crate) mod tool_call;

use mcp_idempotent_core::OnErrorResult;
use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult, MetaObject},
};

pub(crate) use self::{
    definition::{contract, schema},
    identity::{incoming, incoming::Incoming, key},
    result::{entries, not_executed, on_replay, provenance, reader, seal},
    run::{after_commit, attempt, reply, rules, tx, verify},
};
pub use self::{identity::scope, result::refusal, tool_call::ToolCall};

/// A JSON object, as arguments and `_meta` are.
pub(crate) type Object = serde_json::Map<String, serde_json::Value>;

/// The `_meta` of an answer.
pub(crate) type Meta = MetaObject;

/// What a tool handler returns.
pub(crate) type ToolResult = Result<CallToolResponse, ErrorData>;

/// The author's function that says what a result with `isError` means.
pub(crate) type Classify = dyn Fn(&CallToolResult) -> OnErrorResult + Send + Sync;

/// The same, as an attribute names it.
pub(crate) type ClassifyFn = fn(&CallToolResult) -> OnErrorResult;
