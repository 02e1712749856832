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
//! | `redis` | [`RedisStore`]: lease mode, on a Redis or Valkey server or cluster |
//! | `metrics` | counters, gauges and durations through the `metrics` facade ([`telemetry`]) |
//! | `client` | the module `client`: keys on calls, refusals read back, a retry that runs a tool once |
//! | `client-reqwest` | `client`, which also reads the failures of rmcp's HTTP transport over reqwest |
//! | `relay` | the module `relay`: a proxy in front of an unmodified server |
//! | `cli` | the program `mcp-idempotent`: that proxy on the command line |
//! | `testing` | the conformance suite that every [`Store`] passes |

mod attribute;
mod call;
#[cfg(feature = "client")]
pub mod client;
pub mod http;
mod idempotency;
pub mod layer;
mod raw;
#[cfg(feature = "relay")]
pub mod relay;
pub mod wire;

#[doc(hidden)]
pub use crate::attribute::runtime as __private;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use mcp_idempotent_core::CallPool;
#[cfg(feature = "postgres")]
pub use mcp_idempotent_core::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use mcp_idempotent_core::store::redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use mcp_idempotent_core::store::sqlite::SqliteStore;
#[cfg(feature = "testing")]
pub use mcp_idempotent_core::testing;
pub use mcp_idempotent_core::{
    self as core, Application, Audit, DownstreamKey, IdempotencyKey, KeyRequirement, MemoryStore,
    OnDoubt, OnError, OnErrorResult, OnExpired, OperatorStore, Policy, PolicyOverride, RecordId,
    RecordInfo, RecordQuery, RecordStatus, Refusal, Resolution, Resolved, Scope, Secret, Store,
    SweepSettings, Sweeper, TransactionStore, Wait, store, telemetry,
};
#[doc = include_str!("attribute/page.md")]
pub use mcp_idempotent_macros::idempotent;

pub use crate::{
    call::{
        ToolCall,
        after_commit::AfterCommit,
        attempt::Attempt,
        doubt::{InDoubt, IntoVerdict, Verdict, Verifying},
        not_executed::{Failure, NotExecuted},
        on_replay::ReplayedCall,
        reader::RefusalForm,
        refusal,
        scope::{self, Denied},
        tx::Tx,
    },
    idempotency::{BuildError, Idempotency, IdempotencyBuilder, StillRunning},
    layer::{
        ErrorOrigin, HandlerService, IdempotencyLayer, IdempotencyService, IntoErrorData,
        LayeredServer, ServerExt, ToolService,
    },
};

/// The code of the documents, compiled.
#[cfg(all(doctest, feature = "postgres"))]
mod documents {
    #[doc = include_str!("../../README.md")]
    mod readme {}
    #[doc = include_str!("../../docs/keys.md")]
    mod keys {}
    #[doc = include_str!("../../docs/outside-effects.md")]
    mod outside_effects {}
    #[doc = include_str!("../../docs/testing-your-server.md")]
    mod testing_your_server {}
}
