//! How a client puts keys on calls.

use mcp_idempotent_core::IdempotencyKey;
use rmcp::model::CallToolRequestParams;
use serde_json::Value;

use crate::{call::key::Places, wire};

/// A unique key: 122 random bits from the operating system, as a UUID of version 4.
///
/// Make one for each intended operation, and keep it as long as that operation may have to be
/// retried. A retry with a new key is not protected.
#[must_use]
pub fn random_key() -> IdempotencyKey {
    IdempotencyKey::new(uuid::Uuid::new_v4().to_string())
        .unwrap_or_else(|_| unreachable!("a UUID is 36 characters of visible ASCII"))
}

/// Puts an idempotency key on a call.
pub trait WithIdempotencyKey: Sized {
    /// Puts `key` into `_meta["idempotency-key"]`, in place of any key that `_meta` has.
    ///
    /// ```
    /// use mcp_idempotent_tower::client::{WithIdempotencyKey as _, random_key};
    /// use rmcp::model::CallToolRequestParams;
    ///
    /// let key = random_key();
    /// let params = CallToolRequestParams::new("charge_card").with_idempotency_key(&key);
    /// assert_eq!(params.meta.unwrap()["idempotency-key"], key.as_str());
    /// ```
    #[must_use]
    fn with_idempotency_key(self, key: &IdempotencyKey) -> Self;
}

impl WithIdempotencyKey for CallToolRequestParams {
    fn with_idempotency_key(mut self, key: &IdempotencyKey) -> Self {
        let meta = self.meta.get_or_insert_default();
        // A different key under the alias would contradict this one, and a server refuses that.
        meta.remove(wire::KEY_ALIAS);
        meta.insert(wire::KEY.into(), key.as_str().into());
        self
    }
}

/// The value in a place for a key, valid or not: in `_meta`, or in the named argument.
pub(super) fn carried<'a>(
    params: &'a CallToolRequestParams,
    argument: Option<&str>,
) -> Option<&'a Value> {
    let places = Places {
        meta: params.meta.as_ref().map(|meta| &***meta),
        arguments: params.arguments.as_ref(),
        argument,
    };
    places.values().next()
}
