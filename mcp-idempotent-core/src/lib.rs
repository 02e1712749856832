#![cfg_attr(docsrs, feature(doc_cfg))]
//! The engine of mcp-idempotent: idempotency keys, canonical arguments, fingerprints, the claim
//! protocol and the stores. It depends on no MCP crate; `mcp-idempotent-tower` connects it to rmcp.
//!
//! # The course of a call
//!
//! 1. The caller's key (or its canonical arguments) becomes an [`Identity`]: which record this call
//!    belongs to, and what exactly was asked.
//! 2. [`Engine::begin_lease`] or [`Engine::begin_transaction`] returns the recorded result, a refusal, or
//!    an open attempt.
//! 3. The handler runs once, under that attempt. Duplicates in this process join it.
//! 4. [`TransactionAttempt::finish`] (or [`LeaseAttempt::finish`]) records the result. In
//!    transaction mode the record, the result and the handler's writes commit together or not at
//!    all.
//!
//! # Features
//!
//! | Feature | What it adds |
//! | --- | --- |
//! | `postgres` | [`PostgresStore`](store::postgres::PostgresStore): both modes, shared by many processes |
//! | `sqlite` | [`SqliteStore`](store::sqlite::SqliteStore): both modes, an embedded file |
//! | `redis` | [`RedisStore`](store::redis::RedisStore): lease mode, on a Redis or Valkey server or cluster |
//! | `metrics` | counters, gauges and durations through the `metrics` facade ([`telemetry`]) |
//! | `testing` | the conformance suite that every [`Store`] passes |
//!
//! [`MemoryStore`] (lease mode only) needs no feature.

pub mod answer;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod call_pool;
pub mod canonical;
pub mod engine;
pub mod error;
pub mod fingerprint;
pub mod handler_result;
pub mod key;
pub mod policy;
pub mod record;
pub mod refusal;
pub mod scope;
pub mod store;
mod sync;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;

pub use bytes::Bytes;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use crate::call_pool::CallPool;
pub use crate::{
    answer::{Answer, Replay, RotatedKey},
    canonical::CanonicalArguments,
    engine::{
        Authorize, BeginError, Begun, Borrowed, CompletionError, DetachOnDrop, Engine, InDoubtCall,
        Interrupted, LeaseAttempt, LeaseHandle, Lent, NotCurrent, Request, SecretError,
        SecretErrorKind, SweepSettings, Sweeper, TransactionAttempt, Verdict, Verify,
    },
    error::{Action, CommitOutcome, ErrorKind, Refusal},
    fingerprint::{
        DownstreamKey, Fingerprint, Identity, InvalidRecordId, InvalidSecret, KeyKind, RecordId,
        Secret,
    },
    handler_result::{HandlerResult, ResultKind},
    key::{IdempotencyKey, InvalidKey},
    policy::{
        AppliesIn, InvalidPolicy, KeyRequirement, OnDoubt, OnError, OnErrorResult, OnExpired,
        Policy, PolicyOverride, PolicyUse, RotatedKeys, Wait,
    },
    record::{Record, RecordState, Timestamp},
    scope::{Application, Scope},
    store::{
        Audit, CallInfo, CompletionStatement, OperatorStore, RecordInfo, RecordQuery, RecordStatus,
        Resolution, Resolved, Store, StoreError, TransactionStore, memory::MemoryStore,
    },
};
/// The sqlx whose pools, connections and errors these stores use.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use sqlx;

/// Compiles the code in the operator's guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/operating.md")]
mod operating {}
