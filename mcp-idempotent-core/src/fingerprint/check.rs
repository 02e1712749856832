//! The records that say which secret an application has.

use super::{
    Fingerprint, RecordId, Secret,
    hash::{self, FieldHash},
};
use crate::scope::Application;

/// A secret's check value as the fingerprint of a record, or that of having no secret: all zeros. No
/// call has version 0.
pub(crate) fn check_fingerprint(secret: Option<&Secret>) -> Fingerprint {
    let mut digest = [0; 32];
    if let Some(secret) = secret {
        digest[..Secret::CHECK_LENGTH].copy_from_slice(&secret.check_value());
    }
    Fingerprint { version: 0, digest }
}

/// What a store is asked about an application's secret. The ids are of records that no call can
/// have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckRecord {
    /// The check value of the first secret, of the second, …
    Secret(u64),
    /// The secret that is to follow the one of this number.
    Successor(u64),
    /// Kept up while processes serve that know only the secret of this number.
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
