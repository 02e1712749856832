//! A hash over a sequence of fields. Moving a boundary between two fields changes it.

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

// What is hashed. This is the first field, so that a hash of one kind is never a hash of another.
pub(super) const RECORD_ID: &str = "mcp-idempotent/record-id";
pub(super) const FINGERPRINT: &str = "mcp-idempotent/fingerprint";
pub(super) const SECRET_CHECK: &str = "mcp-idempotent/secret-check";
pub(super) const GUARD_WITNESS: &str = "mcp-idempotent/guard-witness";
pub(super) const ROTATED_KEY: &str = "mcp-idempotent/rotated-key";
pub(super) const TICKET: &str = "mcp-idempotent/ticket";
pub(super) const LAST_SWEEP: &str = "mcp-idempotent/last-sweep";
pub(super) const DOWNSTREAM_SEED: &str = "mcp-idempotent/downstream-seed";
pub(super) const DOWNSTREAM_KEY: &str = "mcp-idempotent/downstream-key";

/// SHA-256, or HMAC-SHA-256 under a secret. Each field is preceded by its length.
pub(super) enum FieldHash {
    Plain(Sha256),
    Keyed(Hmac<Sha256>),
}

impl FieldHash {
    pub(super) fn new(keyed: Option<Hmac<Sha256>>, what: &str) -> Self {
        match keyed {
            None => Self::Plain(Sha256::new()),
            Some(keyed) => Self::Keyed(keyed),
        }
        .field(what)
    }

    pub(super) fn field(mut self, field: impl AsRef<[u8]>) -> Self {
        let field = field.as_ref();
        let length = (field.len() as u64).to_be_bytes();
        match &mut self {
            Self::Plain(hash) => {
                Digest::update(hash, length);
                Digest::update(hash, field);
            }
            Self::Keyed(hash) => {
                Mac::update(hash, &length);
                Mac::update(hash, field);
            }
        }
        self
    }

    pub(super) fn finish(self) -> [u8; 32] {
        match self {
            Self::Plain(hash) => hash.finalize().into(),
            Self::Keyed(hash) => hash.finalize().into_bytes().into(),
        }
    }
}
