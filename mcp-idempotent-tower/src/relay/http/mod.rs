//! The relay in front of a server that is reached over Streamable HTTP.
//!
//! [`HttpRelay`] is a service for HTTP requests. All rules of the [relay](super) hold, except where
//! these say something else:
//!
//! 1. Every request passes with its method, path, query, headers and body, and every response
//!    passes back, as it comes. Only the headers that belong to one connection (`Connection`,
//!    `Host`, `Transfer-Encoding`, …) are made anew. The exceptions are the requests that the other
//!    rules name.
//! 2. The body of a `POST` is read whole. One longer than
//!    [`max_message_bytes`](super::RelaySettings::max_message_bytes) is answered with `413`.
//! 3. A protected call is sent with its own id, and without `Accept-Encoding`. If the server
//!    answers with a stream, its events pass as they come, and the one with the answer passes once
//!    it is recorded. A repeated call is answered with JSON.
//! 4. If a stream breaks off before the answer, and its last event had an id, the relay resumes it
//!    (`Last-Event-ID`) up to five times. Without the answer the call is in doubt.
//! 5. A response that is not JSON-RPC passes to the caller whose call was sent. Its status says
//!    whether the call ran: `4xx`, except `408` and `409`, says that it did not; all others leave
//!    it in doubt.
//! 6. A client that disconnects does not end its call. A cancellation of a protected call is
//!    recognised by `Mcp-Session-Id`, and is answered with `202`.
//! 7. Progress reaches the caller whose call was sent, and nobody else.
//! 8. A batch with tool calls is refused with `400`.
//! 9. What the server says about its tools is asked with the headers of the call. It is believed
//!    for 60 seconds, separately for each session and `Authorization`.
//! 10. The scope of a call can only be read from the head of its request, so the relay needs an
//!     `Idempotency` with `with_scope_from_http`, `with_fixed_scope` or
//!     `with_scope_shared_by_all_callers`.

mod event;
mod exchange;
mod relay;
mod wire;

pub use self::{
    relay::HttpRelay,
    wire::{WireBody, WireError},
};
