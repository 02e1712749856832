//! A proxy in front of an unchanged MCP server: a repeated tool call runs once.
//!
//! [`Relay::run`] takes a client, a server, and nothing else: lines of JSON-RPC in both directions.
//! The program `mcp-idempotent` (feature `cli`) does so with a child process. A server that is
//! built with this crate promises more: only there do the effect and its record commit together. A
//! relay promises at most one execution **that it knows of**.
//!
//! # What passes
//!
//! 1. Every line passes byte for byte and in order, in both directions, whether it is JSON or not.
//!    The exceptions are the lines that 3 to 12 name.
//! 2. A line longer than [`max_message_bytes`](RelaySettings::max_message_bytes) passes in parts
//!    and is not read. So a call in such a line is not protected, and a warning is logged. If it is
//!    the server's answer to a protected call, the caller is told that the answer was too long, and
//!    the call is in doubt.
//!
//! # Calls
//!
//! 3. A `tools/call` with an identity is protected. Its key is read from the places that all doors
//!    of this crate read: `_meta`, `params.idempotencyKey`, and the policy's key argument. Without
//!    a key it is recognised by run id, tool and canonical arguments, unless
//!    [`derive`](RelaySettings::derive) excludes its tool.
//! 4. A call of a tool that says `readOnlyHint: true` passes, unless it has a key. To find out, the
//!    relay asks the server for `tools/list` at the first call, and again after
//!    `notifications/tools/list_changed`. If the server does not answer within 10 seconds, its
//!    tools count as unannotated.
//! 5. A protected call is claimed, sent and recorded. The server sees it under an id of the relay's
//!    own, which is also its progress token; nothing else in the line changes. The caller gets the
//!    server's answer with its own id and nothing else changed.
//! 6. A repeated call joins the running one, or is answered from the record. Its result has a marker
//!    in `_meta`.
//! 7. A call that cannot be compared with others is refused, not sent: it is not UTF-8, is nested
//!    too deeply, or has a number beyond the range of a double or half of a surrogate pair.
//! 8. A batch that has protected calls is taken apart. Each of them is sent and answered on its
//!    own.
//! 9. Each protected call is claimed before it is sent, so it may reach the server later than
//!    messages that came after it. (JSON-RPC promises no order.)
//!
//! # Answers
//!
//! | The server answers … | The record | What a repeated call gets |
//! | --- | --- | --- |
//! | a result | kept | that result |
//! | a result with `isError`, and the call had a key | kept | that result |
//! | a result with `isError`, and the call had none | none | it runs |
//! | a JSON-RPC error | none; with [`MayHaveActed`](ServerError::MayHaveActed), in doubt | it runs; with `MayHaveActed`, "outcome unknown" |
//! | `input_required` | none | calls of the same round join; the next round runs |
//! | a task | kept | the same task |
//! | a refusal in the words of this crate | none if it asks to try again, or says that nothing happened (if the tool has no [contract](crate::wire::CONTRACT), as after any JSON-RPC error); else in doubt | it runs; else "outcome unknown" |
//! | something that cannot be read: too long, or no JSON | in doubt | see 10 |
//! | nothing: it ends | in doubt | see 10 |
//!
//! 10. A call that was sent and not answered is in doubt, even if the relay itself ended. A
//!     repeated call is told so and does not run, unless [`on_doubt`](RelaySettings::on_doubt) is
//!     [`Rerun`](crate::OnDoubt::Rerun), or is not set and the tool says `idempotentHint: true`. If
//!     no part of the call was sent, it may run again.
//! 11. A cancellation of a protected call is not forwarded: servers drop the answer to a cancelled
//!     request, and the repeated call would never get one. The call goes on and is recorded. With
//!     [`forward_cancel`](RelaySettings::forward_cancel) it is forwarded, and the call is in doubt
//!     at once, whatever the server then answers.
//! 12. Progress of a running call reaches all callers who asked for it, each under its own token,
//!     and nobody else. If the caller whose call was sent did not ask, the server reports none.
//! 13. A refusal takes the form that the maker of the key can see: a JSON-RPC error if the key was
//!     in `_meta` or `params.idempotencyKey`, otherwise a result with `isError`, which models see.
//!
//! # Ends and bounds
//!
//! 14. When the client ends, its protected calls go on for at most [`drain`](RelaySettings::drain).
//!     Then the server's input is closed.
//! 15. When the server has ended and all that it wrote is read, calls that wait for it are answered,
//!     and [`Relay::run`] returns. (A client that does not read keeps the relay from reading on.)
//! 16. Memory, with `m` for `max_message_bytes`: at most `m` is read ahead from each side. Calls
//!     that are not sent yet hold at most `2m` of lines, and 4 KiB each until they are answered;
//!     more are refused. Answers of the server that are not written yet hold at most `2m`. Added to
//!     that are parsed arguments, a copy of what is recorded, and one recorded result for each
//!     repeated call that is being answered. A client that does not read is not read from.
//!
//! # Where it is
//!
//! | Where is … | |
//! | --- | --- |
//! | what passes, is claimed, or is answered | `calls` |
//! | the rule for a call, by its tool | `rule`, `tools` |
//! | the call itself, and why one is refused | `call` |
//! | the server's side, and the relay's own ids | `upstream` |
//! | what the server's answer means | `answer`; `replay` for a recorded one |
//! | reading and writing lines | `session`, `line`, `outlet` |
//! | the same over HTTP | `http` |
//!
//! # Example
//!
//! ```
//! use mcp_idempotent_tower::{Idempotency, MemoryStore, relay::{Relay, RelaySettings}};
//! # use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, duplex, split};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let ((client, a), (server, b)) = (duplex(4096), duplex(4096));
//! # let (client, a, server, b) = (split(client), split(a), split(server), split(b));
//! let relay = Relay::new(Idempotency::for_stdio("shop", MemoryStore::new())?, RelaySettings::default())?;
//! // Any two pairs of a reader and a writer: pipes of a child process, sockets, …
//! let running = tokio::spawn(async move { relay.run(a, b).await });
//! # let (mut client, mut server) = (client.1, BufReader::new(server.0).lines());
//! # client.write_all(b"{\"method\":\"ping\",\"id\":1}\n").await?;
//! # assert_eq!(server.next_line().await?.unwrap(), r#"{"method":"ping","id":1}"#);
//! # running.abort();
//! # Ok(())
//! # }
//! ```

mod answer;
mod call;
mod calls;
pub mod http;
mod line;
mod message;
mod outlet;
mod pending;
mod progress;
#[expect(clippy::module_inception, reason = "the file of the type")]
mod relay;
mod replay;
mod rule;
mod scan;
mod session;
mod settings;
mod tools;
mod upstream;

pub use self::{
    relay::Relay,
    settings::{Derive, RelaySettings, ServerError, ToolRule},
};
