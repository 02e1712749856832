//! For tests of your server and of your store.
//!
//! # Your server
//!
//! [`assert_idempotent`] calls one of your tools, interferes as networks, clients and databases do, and
//! counts what the tool did. It speaks to the server through rmcp, over pipes in this process, so it sees
//! exactly what a client sees. It works for annotated tools, for servers behind the layer, and for those
//! that protect themselves in some other way.
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU64, Ordering::SeqCst}};
//!
//! use mcp_idempotent_tower::{
//!     Idempotency, MemoryStore, idempotent,
//!     testing::{Check, assert_idempotent},
//! };
//! use rmcp::{handler::server::wrapper::Parameters, schemars, tool, tool_router};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Charge { cents: u64 }
//!
//! #[derive(Clone)]
//! struct Billing {
//!     idempotency: Idempotency<MemoryStore>,
//!     charges: Arc<AtomicU64>,
//! }
//!
//! #[tool_router(server_handler)]
//! impl Billing {
//!     /// Charge the card.
//!     #[idempotent(on_error = in_doubt)]
//!     #[tool]
//!     async fn charge(&self, Parameters(charge): Parameters<Charge>) -> String {
//!         let number = self.charges.fetch_add(1, SeqCst);
//!         format!("charge {number}: {} cents", charge.cents)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let charges = Arc::new(AtomicU64::new(0));
//! let server = Billing {
//!     idempotency: Idempotency::for_stdio("billing", MemoryStore::new())?,
//!     charges: Arc::clone(&charges),
//! };
//! let check = Check::new("charge", move || {
//!     let charges = charges.load(SeqCst);
//!     async move { charges }
//! });
//! assert_idempotent(server, check.with_arguments(serde_json::json!({ "cents": 4200 }))).await;
//! # Ok(())
//! # }
//! ```
//!
//! | Scenario | What is wrong |
//! | --- | --- |
//! | repeated, on the same connection and on a new one | a second effect; a result that is not the first one |
//! | repeated without a key | a second effect, where the tool's contract says `derived`; any effect, where it says `required` |
//! | 8 calls at the same time, on one connection and on two | a second effect; different results |
//! | the same key with other arguments, later and at the same time | it is executed, or answered with a result |
//! | cancelled, given up or disconnected, at three moments, then repeated | a second effect; no result in the end; "outcome unknown" where the contract says `transaction` |
//! | a failure, then repeated ([`Check::with_failure`]) | a second effect |
//! | another caller with the same key ([`Check::with_callers`]) | the first caller's result, or none |
//! | the store is away, or fails at the end of the call ([`Check::with_store_faults`]) | a second effect; an effect while it is away |
//!
//! The three moments are: at once, after half of the time that the tool takes, and as soon as the effect
//! can be counted. In lease mode a repeat may be answered with "outcome unknown" after an interruption:
//! that is the promise.
//!
//! Some rules of a check:
//!
//! - The count covers everything, and only this check causes effects while it runs.
//! - A call has one effect. If your tool writes two rows, count one kind of them.
//! - After each scenario it rests for one and a half times the duration of a call, 30 ms to 3 s, so that a
//!   late effect is seen.
//! - A crash cannot be played in one process. The program `mcp-idempotent check` kills real ones, and checks
//!   servers in any language.
//!
//! [`Check::run`] returns a [`Report`] instead of panicking. [`Check::run_at`] takes any [`Door`].
//!
//! # Your store
//!
//! Everything else here is [the conformance suite](mcp_idempotent_core::testing) for stores.

mod check;
mod door;
mod faults;
mod in_process;
mod lines;
mod play;
mod report;
mod run;
mod scenes;
mod session;
mod told;

#[doc(inline)]
pub use mcp_idempotent_core::testing::*;

pub use self::{
    check::{Check, Count},
    door::{Caller, Door, Wire},
    faults::{FaultyStore, StoreFaults},
    in_process::assert_idempotent,
    lines::Lines,
    report::{Report, Scene},
    run::{CheckError, CheckErrorKind},
};
