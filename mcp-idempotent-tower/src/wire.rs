//! Every name that goes over the wire.

/// Where a client puts its key: `_meta["idempotency-key"]`.
pub const KEY: &str = "idempotency-key";

/// The namespaced alias of [`KEY`].
pub const KEY_ALIAS: &str = "io.github.mcp-idempotent/idempotency-key";

/// `_meta` of a replay: `{"at": "<RFC 3339>"}`.
pub const REPLAYED: &str = "io.github.mcp-idempotent/replayed";

/// `_meta` of a result that could not be recorded: `{"message": "…"}`. A retry will be told that the outcome is
/// unknown.
pub const UNRECORDED: &str = "io.github.mcp-idempotent/unrecorded";

/// `_meta` of the result of a call to which an equal call under another key was found: `{"at": "<RFC 3339>"}`, when
/// that one completed, or `{"at": null}` if that is not known yet. With [`REPLAYED`] it is that one's result;
/// without, both were executed.
pub const ROTATED_KEY: &str = "io.github.mcp-idempotent/rotated-key";

/// What a key begins with that confirms a new intent, if the tool minds equal calls under different keys.
pub const NEW_INTENT: &str = "new-intent:";

/// `_meta` of a tool's entry in `tools/list`: its contract.
pub const CONTRACT: &str = "io.github.mcp-idempotent/idempotency";

/// `_meta` of a refusal in the form of a tool result. It holds what `data` holds in the form of an error.
pub const REFUSAL: &str = "io.github.mcp-idempotent/refusal";

/// In the `_meta` of a tool's own result with `isError`, or the `data` of its own error: the call is in doubt. It
/// holds what the `data` of a retry's refusal will hold.
pub const IN_DOUBT: &str = "io.github.mcp-idempotent/in-doubt";

/// The extension in `capabilities.extensions` of a server with our layer.
pub const EXTENSION: &str = "io.github.mcp-idempotent/idempotency";

/// The request that asks what became of a call.
pub const STATUS_METHOD: &str = "io.github.mcp-idempotent/status";

/// Where SEP-3182 puts the key: `params.idempotencyKey`.
pub const KEY_MEMBER: &str = "idempotencyKey";

/// [`KEY_MEMBER`] in the list of places of the capability.
pub const KEY_MEMBER_PLACE: &str = "params.idempotencyKey";

/// The HTTP header that may carry the key, if the server allows it (`LiftKeyLayer::with_header`).
pub const KEY_HEADER: &str = "Idempotency-Key";

/// [`KEY_HEADER`] in the list of places of the capability.
pub const KEY_HEADER_PLACE: &str = "header Idempotency-Key";

/// The capability of SEP-3182: `capabilities.tools.idempotency`.
pub const SEP_CAPABILITY: &str = "idempotency";

/// `_meta` of a result: what another server said in these names and a handler passed on. In an error it
/// is under `upstream` in `data`.
pub const UPSTREAM: &str = "io.github.mcp-idempotent/upstream";

/// The prefix of all our names in a `_meta`, except [`KEY`].
pub(crate) const PREFIX: &str = "io.github.mcp-idempotent/";

/// Proves that the members with our names were made for this call; removed before an answer is sent.
pub(crate) const SEAL: &str = "io.github.mcp-idempotent/made-here";

/// In the `data` of an error, or the `_meta` of a result: proves that nothing happened. Removed before the
/// answer is sent.
pub(crate) const NOT_EXECUTED: &str = "io.github.mcp-idempotent/not-executed";

/// `type` in the `data` of an error: a status request does not say which call it asks about.
pub(crate) const STATUS_INVALID: &str = "status_request_invalid";

/// `type` in the `data` of an error: a timeout above or below the layer.
pub(crate) const TIMED_OUT: &str = "call_timed_out";

/// `type` in the `data` of an error: a service gave up on the call.
pub(crate) const FAILED: &str = "call_failed";

/// `type` in the `data` of an error: a load limit refused the call.
pub(crate) const OVERLOADED: &str = "server_overloaded";

/// `type` in the `data` of an error: a service was not ready for the call.
pub(crate) const NOT_CALLED: &str = "call_not_executed";
