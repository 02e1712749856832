//! What every call goes through, whichever door it came through: the attribute, the layer or the relay.
//!
//! | Where is … | |
//! | --- | --- |
//! | the call itself | [`tool_call`]; `incoming` is what the rest needs to know about it |
//! | the whole run | [`run`], one function for each mode; `unprotected` has the attempts of calls without protection |
//! | the key, the scope, the identity | [`key`], [`scope`], [`identity`]; [`round`] for later rounds |
//! | the rules of the call | [`rules`] |
//! | what the handler is given | [`attempt`] (lease mode), [`tx`] (a transaction) |
//! | how the handler is told to stop | `handler` (transaction mode), [`attempt`] (lease mode) |
//! | a call in doubt | [`doubt`], `verify` |
//! | what the handler left | `handler` (its transaction), [`result`] (its result) |
//! | who said it: the handler, or another server | [`observed`], [`seal`], [`provenance`], [`not_executed`] |
//! | what the caller is told | [`reply`], [`refusal`] |
//! | what `tools/list` says | [`definition`], [`contract`], [`schema`] |

pub(crate) mod after_commit;
pub(crate) mod attempt;
pub(crate) mod contract;
pub(crate) mod definition;
pub(crate) mod doubt;
mod handler;
pub(crate) mod identity;
mod incoming;
pub(crate) mod key;
pub(crate) mod not_executed;
pub(crate) mod observed;
pub(crate) mod on_replay;
pub(crate) mod provenance;
pub(crate) mod reader;
pub mod refusal;
pub(crate) mod reply;
pub(crate) mod result;
pub(crate) mod round;
pub(crate) mod rules;
pub(crate) mod run;
pub(crate) mod schema;
pub mod scope;
pub(crate) mod seal;
pub(crate) mod tool_call;
pub(crate) mod tx;
mod unprotected;
mod verify;

use mcp_idempotent_core::OnErrorResult;
use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult},
};

pub(crate) use self::incoming::Incoming;
pub use self::tool_call::ToolCall;

/// A JSON object, as arguments and `_meta` are.
pub(crate) type Object = serde_json::Map<String, serde_json::Value>;

/// What a tool handler returns.
pub(crate) type ToolResult = Result<CallToolResponse, ErrorData>;

/// The author's function that says what a result with `isError` means.
pub(crate) type Classify = dyn Fn(&CallToolResult) -> OnErrorResult + Send + Sync;

/// The same, as an attribute names it.
pub(crate) type ClassifyFn = fn(&CallToolResult) -> OnErrorResult;
