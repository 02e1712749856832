//! The secret that keys the hashes.

use std::fmt;

use hmac::{Hmac, KeyInit};
use sha2::Sha256;

use super::hash::{self, FieldHash};

/// A secret that turns record ids and fingerprints into keyed hashes (HMAC-SHA-256), so that
/// low-entropy arguments cannot be guessed from a dump of the table.
///
/// All processes that share records need the same secret. With a different one no record is found,
/// and a retry would run a second time. A store keeps the [`check_value`](Self::check_value), so
/// that a server with a different secret is refused at start-up.
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

    /// A hash of a constant under this secret. With it a store can detect a different secret without
    /// knowing this one. The chance that two secrets share a check value is 1 in 2^64.
    #[must_use]
    pub fn check_value(&self) -> [u8; Self::CHECK_LENGTH] {
        let digest = FieldHash::new(Some(self.keyed_hash()), hash::SECRET_CHECK).finish();
        let mut value = [0; Self::CHECK_LENGTH];
        value.copy_from_slice(&digest[..Self::CHECK_LENGTH]);
        value
    }

    pub(super) fn keyed_hash(&self) -> Hmac<Sha256> {
        self.keyed.clone()
    }
}

/// Shows nothing of the secret.
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
