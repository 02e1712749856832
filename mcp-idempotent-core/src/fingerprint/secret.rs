//! The secret that keys the hashes.

use std::fmt;

use hmac::{Hmac, KeyInit};
use sha2::Sha256;

use super::{
    Fingerprint, RecordId,
    hash::{self, FieldHash},
};
use crate::scope::Application;

/// A secret that turns record ids and fingerprints into keyed hashes (HMAC-SHA-256), so that
/// low-entropy arguments cannot be guessed from a dump of the table.
///
/// All processes that share records need the same secret. Under another secret no record is found,
/// and a retry would run a second time. A store keeps the [`check_value`](Self::check_value), so
/// that another secret is refused at start-up.
#[derive(Clone)]
pub struct Secret {
    /// The hash after it has absorbed the secret. The secret itself is not kept.
    keyed: Hmac<Sha256>,
}

impl Secret {
    /// The shortest secret that is accepted, in bytes.
    pub const MIN_LENGTH: usize = 16;

    /// The length of [`check_value`](Self::check_value), in bytes.
    pub const CHECK_LENGTH: usize = 8;

    /// Makes a secret from at least [`MIN_LENGTH`](Self::MIN_LENGTH) bytes of a random source.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] if there are fewer bytes. Randomness cannot be checked.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, InvalidSecret> {
        let bytes = bytes.as_ref();
        let invalid = InvalidSecret {
            length: bytes.len(),
        };
        if bytes.len() < Self::MIN_LENGTH {
            return Err(invalid);
        }
        Hmac::new_from_slice(bytes)
            .map(|keyed| Self { keyed })
            .map_err(|_| invalid)
    }

    /// A hash of a constant under this secret. A store that holds it can detect another secret
    /// without knowing this one. The chance that two secrets share a check value is 1 in 2^64.
    #[must_use]
    pub fn check_value(&self) -> [u8; Self::CHECK_LENGTH] {
        let digest = FieldHash::new(Some(self), hash::SECRET_CHECK).finish();
        let mut value = [0; Self::CHECK_LENGTH];
        value.copy_from_slice(&digest[..Self::CHECK_LENGTH]);
        value
    }

    /// The check value in the form of a record's fingerprint. All zeros mean that there is no
    /// secret. Its version is 0, which no call has.
    pub(crate) fn check_fingerprint(secret: Option<&Self>) -> Fingerprint {
        let mut digest = [0; 32];
        if let Some(secret) = secret {
            digest[..Self::CHECK_LENGTH].copy_from_slice(&secret.check_value());
        }
        Fingerprint { version: 0, digest }
    }

    pub(super) fn keyed_hash(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }
}

/// What a store can be asked about an application's secret. Each has a record id that no call can
/// have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckRecord {
    /// The check value of the secret with this number; the first is 0.
    Secret(u64),
    /// The check value of the secret that is to follow the secret with this number.
    Successor(u64),
    /// Renewed as long as there are processes that know only the secret with this number.
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

/// Shows nothing.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The secret is too short. The message shows only its length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidSecret {
    length: usize,
}

impl fmt::Display for InvalidSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the secret has {} bytes; use at least {} bytes from a random source, \
             such as the output of `openssl rand -hex 32`",
            self.length,
            Secret::MIN_LENGTH,
        )
    }
}

impl std::error::Error for InvalidSecret {}
