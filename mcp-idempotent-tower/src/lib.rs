#![cfg_attr(docsrs, feature(doc_cfg))]
// The guide has a program on SQLite. docs.rs builds with all features.
#![cfg_attr(feature = "sqlite", doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "sqlite"),
    doc = "Idempotent tool calls for MCP servers built with [rmcp]."
)]
//!
//! # In this crate
//!
//! - [`#[idempotent]`](macro@idempotent) on a tool; the transaction as `&mut`, as [`Tx`] or behind a [`CallPool`];
//!   [`AfterCommit`]; in lease mode [`Attempt`] and [`NotExecuted`]
//! - [`Idempotency`], which a server holds: its store, its policy, and whose calls it gets
//! - [`layer`] and [`ServerExt`] for a whole server; [`http`](mod@http) for the key where SEP-3182 put it
//! - [`client`] to send keys and to read refusals; [`relay`], the proxy as a library; [`wire`], every name
//! - [`testing`], which plays faults on your server in a test
//!
//! # Features
//!
//! | Feature | What it adds |
//! | --- | --- |
//! | `postgres` | [`PostgresStore`]: both modes, shared by many processes |
//! | `sqlite` | [`SqliteStore`]: both modes, an embedded file |
//! | `redis` | [`RedisStore`]: lease mode, on a Redis or Valkey server or cluster |
//! | `sea-orm` | the module `sea_orm`: sea-orm 2 on the transaction of a call on Postgres |
//! | `metrics` | counters, gauges and durations through the `metrics` facade ([`telemetry`]) |
//! | `client` | the module `client`: keys on calls, refusals read back, a retry that runs a tool once |
//! | `client-reqwest` | `client`, which also reads the failures of rmcp's HTTP transport over reqwest |
//! | `relay` | the module `relay`: a proxy in front of an unmodified server |
//! | `cli` | the program `mcp-idempotent`: that proxy on the command line, with TLS |
//! | `cli-without-tls` | the same program without TLS |
//! | `testing` | the module `testing`: a check of your server, and the conformance suite that every [`Store`] passes |

mod attribute;
mod call;
#[cfg(feature = "client")]
pub mod client;
pub mod http;
mod idempotency;
pub mod layer;
mod lift;
mod raw;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "sea-orm")]
pub mod sea_orm;
pub mod stdio;
#[cfg(feature = "testing")]
pub mod testing;
pub mod wire;

#[doc(hidden)]
pub use crate::attribute::runtime as __private;
#[cfg(feature = "postgres")]
pub use mcp_idempotent_core::store::postgres::PostgresStore;
#[cfg(feature = "redis")]
pub use mcp_idempotent_core::store::redis::RedisStore;
#[cfg(feature = "sqlite")]
pub use mcp_idempotent_core::store::sqlite::SqliteStore;
pub use mcp_idempotent_core::{
    self as core, Application, Audit, CompletionStatement, DownstreamKey, IdempotencyKey,
    KeyRequirement, MemoryStore, OnDoubt, OnError, OnErrorResult, OnExpired, OperatorStore, Policy,
    PolicyOverride, RecordId, RecordInfo, RecordQuery, RecordStatus, Refusal, Resolution, Resolved,
    RotatedKeys, Scope, Secret, SecretError, Store, SweepSettings, Sweeper, TransactionStore, Wait,
    store, telemetry,
};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use mcp_idempotent_core::{CallPool, call_pool::Strays, sqlx};
#[doc = include_str!("attribute/page.md")]
pub use mcp_idempotent_macros::idempotent;
/// The rmcp that this version works with.
pub use rmcp;

pub use crate::{
    call::{
        ToolCall,
        after_commit::AfterCommit,
        attempt::Attempt,
        not_executed::{Failure, NotExecuted},
        on_replay::ReplayedCall,
        reader::RefusalForm,
        refusal,
        scope::{self, Denied},
        tx::Tx,
        verify::{InDoubt, IntoVerdict, Verdict, Verifying},
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
    #[cfg(feature = "sea-orm")]
    #[doc = include_str!("../../docs/other-drivers.md")]
    mod other_drivers {}
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../docs/testing-your-server.md")]
    mod testing_your_server {}
}
