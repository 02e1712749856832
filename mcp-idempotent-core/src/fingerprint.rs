//! Identity: which record a call belongs to, and what exactly it asked.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::{
    canonical::CanonicalArguments,
    key::IdempotencyKey,
    scope::{Application, Scope},
};

/// The primary key of a record: SHA-256 over length-prefixed application, scope, key kind, and
/// then the key or, for a derived key, tool and canonical arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// From stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes as stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_digest("RecordId", &self.0, f)
    }
}

/// What was asked: SHA-256 of record id, tool name and canonical arguments, with the version of
/// the canonical form that made it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The length of the stored form, in bytes.
    pub const STORED_LENGTH: usize = 33;

    /// From the stored form: one byte of version, then the digest.
    #[must_use]
    pub fn from_stored(stored: &[u8]) -> Option<Self> {
        let (version, digest) = stored.split_first()?;
        Some(Self {
            version: *version,
            digest: digest.try_into().ok()?,
        })
    }

    /// The stored form: one byte of version, then the digest.
    #[must_use]
    pub fn to_stored(self) -> [u8; Self::STORED_LENGTH] {
        let mut stored = [self.version; Self::STORED_LENGTH];
        stored[1..].copy_from_slice(&self.digest);
        stored
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_digest("Fingerprint", &self.digest, f)
    }
}

/// Where a call's key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a key is sent or it is not")]
pub enum KeyKind {
    /// The client sent it.
    Explicit,
    /// Derived from tool and canonical arguments.
    Derived,
}

/// Which record a call belongs to, and what exactly it asked. Computed once, before the handler.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Identity {
    /// The record.
    pub id: RecordId,
    /// What was asked.
    pub fingerprint: Fingerprint,
    /// Where the key came from.
    pub kind: KeyKind,
    /// At most 8 characters of an explicit key, for operators.
    pub key_prefix: Option<Box<str>>,
}

impl Identity {
    /// Computes the identity of one call.
    #[must_use]
    pub fn new(
        application: &Application,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        let _ = secret;
        let mut hash = Sha256::new();
        for field in [application.as_str(), scope.as_str()] {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field);
        }
        match key {
            Some(key) => hash.update(key.as_str()),
            None => {
                hash.update(tool);
                hash.update(arguments.as_str());
            }
        }
        let id = RecordId(hash.finalize().into());
        let mut hash = Sha256::new();
        hash.update(id.0);
        hash.update(tool);
        hash.update(arguments.as_str());
        Self {
            id,
            fingerprint: Fingerprint {
                version: CanonicalArguments::VERSION,
                digest: hash.finalize().into(),
            },
            kind: if key.is_some() {
                KeyKind::Explicit
            } else {
                KeyKind::Derived
            },
            key_prefix: key.map(|key| key.prefix().into()),
        }
    }
}

/// A secret that turns record ids and fingerprints into keyed hashes (HMAC-SHA-256), so that
/// low-entropy arguments cannot be guessed from a dump of the table.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl Secret {
    /// Takes the secret's bytes.
    #[must_use]
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = &self.0;
        f.write_str("Secret(…)")
    }
}

fn fmt_digest(name: &str, digest: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}(")?;
    for byte in &digest[..4] {
        write!(f, "{byte:02x}")?;
    }
    f.write_str("…)")
}
