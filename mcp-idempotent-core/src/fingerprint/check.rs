//! The records that tell which secret an application has.

use super::{
    Fingerprint, RecordId, Secret,
    hash::{self, FieldHash},
};
use crate::scope::Application;

/// A secret's check value, in the form of a fingerprint. For no secret it is all zeros. Version 0
/// keeps it apart from the fingerprints of calls.
pub(crate) fn check_fingerprint(secret: Option<&Secret>) -> Fingerprint {
    let mut digest = [0; 32];
    if let Some(secret) = secret {
        digest[..Secret::CHECK_LENGTH].copy_from_slice(&secret.check_value());
    }
    Fingerprint { version: 0, digest }
}

/// The records about an application's secret. No call can have their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckRecord {
    /// The check value of the secret with this number; the first has number 0.
    Secret(u64),
    /// The secret that will follow the one with this number.
    Successor(u64),
    /// Kept alive while there are processes that only know the secret with this number.
    Unaware(u64),
}

impl CheckRecord {
    pub(crate) fn id(self, application: &Application) -> RecordId {
        let hash = FieldHash::new(None, hash::SECRET_CHECK).field(application.as_str());
        let hash = match self {
            Self::Secret(0) => hash,
            Self::Secret(number) => hash.field("secret").field(number.to_be_bytes()),
            Self::Successor(number) => hash.field("successor").field(number.to_be_bytes()),
            Self::Unaware(number) => hash.field("unaware").field(number.to_be_bytes()),
        };
        RecordId::from_bytes(hash.finish())
    }
}
