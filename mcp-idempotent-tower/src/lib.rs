//! Idempotent tool calls for MCP servers built with [rmcp].
//!
//! An MCP client that loses a response sends the call again, and the tool runs twice. Put
//! [`#[idempotent]`](macro@idempotent) on the tool: the second call gets the first one's result.
//! With [`PostgresStore`] or
//! [`SqliteStore`] the record, the result and the tool's own writes
//! commit in one transaction.
//!
//! # Features
//!
//! | Feature | What it adds |
//! | --- | --- |
//! | `postgres` | [`PostgresStore`]: both modes, shared by many processes |
//! | `sqlite` | [`SqliteStore`]: both modes, an embedded file |
//! | `testing` | the conformance suite that every [`Store`] passes |

#[doc(hidden)]
pub mod __private;
mod builder;
mod call;
mod execute;
mod idempotency;
mod not_executed;
mod options;
mod result;
pub mod scope;
pub mod wire;

#[cfg(feature = "postgres")]
pub use mcp_idempotent_core::store::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use mcp_idempotent_core::store::sqlite::SqliteStore;
#[cfg(feature = "testing")]
pub use mcp_idempotent_core::testing;
pub use mcp_idempotent_core::{
    self as core, Application, IdempotencyKey, KeyRequirement, MemoryStore, OnError, OnExpired,
    Policy, Refusal, Scope, Secret, Store, TransactionStore, Wait, store,
};
#[doc = include_str!("attribute.md")]
pub use mcp_idempotent_macros::idempotent;

pub use crate::{
    builder::{BuildError, IdempotencyBuilder},
    idempotency::Idempotency,
    not_executed::NotExecuted,
    scope::Denied,
};

/// The README's code, compiled.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../README.md")]
mod readme {}
