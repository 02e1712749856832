//! For MCP clients: a key on a call, a refusal read back, and a retry that runs a tool once.
//!
//! 1. [`WithIdempotencyKey`] puts a key on a call; [`random_key`] makes one.
//! 2. [`ReceivedRefusal`] reads a refusal back, and [`replayed_at`] tells a replay from a first
//!    result.
//! 3. [`RetryPolicy::call`] calls a tool over rmcp's client, and repeats the call if that cannot
//!    run the tool twice. All attempts carry the same key.
//!
//! # What a failure proves, and what is done
//!
//! For each failed attempt, the first row that fits applies.
//!
//! | The attempt ended with | What it proves | Call with a key, or safe | Call without |
//! | --- | --- | --- | --- |
//! | no connection ([`Connect`] failed, or took too long) | not run: nothing was sent | repeated | repeated |
//! | the connection's task gone before it took the call | not run: nothing was sent | repeated | repeated |
//! | over HTTP ²: 404 for the session, also where connecting anew then failed ¹ | not run | repeated | repeated |
//! | over HTTP ²: no connection to the server's address | not run: nothing was written | repeated | repeated |
//! | any other error of the transport while sending (a broken pipe, HTTP 5xx or 429, a session recovery that timed out) | nothing: a line or a body may be written whole, and its answer lost | repeated | **may have run** |
//! | the connection closed before the answer | nothing | repeated | **may have run** |
//! | no answer in time | nothing; the server is told that the call is cancelled | repeated | **may have run** |
//! | a refusal with action `wait` or `retry_same_key` | what its `outcome` says | repeated after `retryAfterMs` | refused |
//! | a refusal with action `use_new_key` or `ask_operator` | what its `outcome` says | refused | refused |
//! | any other JSON-RPC error | the server has answered | answered | answered |
//! | an answer that is not a tool result | the server has answered | **may have run** | **may have run** |
//!
//! ¹ rmcp's client connects anew by itself and sends the call a second time, unless told not to
//! (`reinit_on_expired_session`).
//!
//! ² With the feature `client-reqwest`, for rmcp's transport over reqwest; without it, and for other
//! HTTP clients, these failures count as errors while sending.
//!
//! "May have run" is [`CallErrorKind::MayHaveRun`]. A call also ends like this if its last attempts
//! found no server but an earlier one was lost.
//!
//! # What to know
//!
//! - A key only protects on a server that honours it. [`Call::of`] looks at the tool's entry in
//!   `tools/list`; [`Call::keyed`] relies on the caller.
//! - A refusal is only believed if `docs/wire.md` lists its type with that outcome and action. Any
//!   other is an ordinary error.
//! - A call without a key is never repeated because of a refusal, whatever its outcome: the refusal
//!   may come from another server, about another call, and the tool passed it on.
//! - The same holds for tools whose calls the server recognises by their arguments
//!   (`"key": "derived"` in the contract): the client cannot see when the window of a derived key
//!   ends, and a repeat after that is a new call. [`Call::of`] puts an explicit key on such a call,
//!   which makes every repeat safe.
//! - A call that carries its key in an argument gets none in `_meta`: a server refuses two
//!   different keys.
//! - The session of a lost attempt may be gone. A closure that connects anew gets past that; a
//!   plain `&Peer` does not.
//!
//! # Example
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
//!
//! use mcp_idempotent_tower::{
//!     Idempotency, MemoryStore,
//!     client::{Attempt, Call, RetryPolicy, replayed_at},
//!     idempotent,
//! };
//! use rmcp::{
//!     ServiceExt as _, model::{CallToolRequestParams, CallToolResponse}, tool, tool_router,
//! };
//!
//! #[derive(Clone)]
//! struct Billing {
//!     idempotency: Idempotency<MemoryStore>,
//!     charges: Arc<AtomicU32>,
//! }
//!
//! #[tool_router(server_handler)]
//! impl Billing {
//!     /// Charge the card.
//!     #[idempotent(on_error = in_doubt)]
//!     #[tool]
//!     async fn charge(&self) -> String {
//!         format!("charge {}", self.charges.fetch_add(1, Ordering::SeqCst) + 1)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let billing = Billing {
//!     idempotency: Idempotency::for_stdio("billing", MemoryStore::new())?,
//!     charges: Arc::default(),
//! };
//! // Connects anew for each attempt. Here, to a server in this process.
//! let connect = |_: Attempt| {
//!     let billing = billing.clone();
//!     async move {
//!         let (here, there) = tokio::io::duplex(4096);
//!         tokio::spawn(async move {
//!             if let Ok(server) = billing.serve(there).await {
//!                 server.waiting().await.ok();
//!             }
//!         });
//!         ().serve(here).await
//!     }
//! };
//!
//! let call = Call::keyed(CallToolRequestParams::new("charge"));
//! let policy = RetryPolicy::new().with_attempts(3);
//!
//! let first = policy.call(connect, call.clone()).await?;
//! // The program forgot that it had the answer, and sends the same call again.
//! let second = policy.call(connect, call).await?;
//!
//! let CallToolResponse::Complete(second) = second else { panic!("no result") };
//! assert!(replayed_at(&second).is_some());
//! assert_eq!(billing.charges.load(Ordering::SeqCst), 1);
//! # drop(first);
//! # Ok(())
//! # }
//! ```

mod attempt;
mod call;
mod connect;
mod error;
mod failure;
mod key;
mod policy;
mod refusal;
mod retry;

pub use self::{
    call::Call,
    connect::{Attempt, Connect, Connection},
    error::{CallError, CallErrorKind},
    key::{WithIdempotencyKey, random_key},
    policy::RetryPolicy,
    refusal::{ReceivedRefusal, replayed_at},
};
