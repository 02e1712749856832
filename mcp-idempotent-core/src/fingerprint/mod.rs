//! Identity: which record a call belongs to, and what exactly it asked.
//!
//! # What is hashed
//!
//! Every hash covers a sequence of fields. Each field is preceded by its length in bytes, as a
//! 64-bit big-endian integer, so that `("a", "bc")` and `("ab", "c")` differ. The first field names
//! what is hashed.
//!
//! | Hash | Fields |
//! | --- | --- |
//! | id of an explicit key | `mcp-idempotent/record-id`, application, scope, `explicit`, key |
//! | id of a derived key | `mcp-idempotent/record-id`, application, scope, `derived`, version of the canonical form (one byte), tool, canonical arguments |
//! | id that equal calls under explicit keys share | as for a derived key, with `rotated` in place of `derived` |
//! | fingerprint of one of them there | `mcp-idempotent/rotated-key`, that id (32 bytes), record id of the call (32 bytes) |
//! | fingerprint | `mcp-idempotent/fingerprint`, record id (32 bytes), tool, canonical arguments |
//! | check value of a secret | `mcp-idempotent/secret-check` |
//! | ids of the records that say which secret an application has | `mcp-idempotent/secret-check`, application; for all but the first also `secret`, `successor` or `unaware`, and a number (64-bit big-endian) |
//! | id of a guard's witness | `mcp-idempotent/guard-witness`, record id (32 bytes), fencing token (64-bit big-endian) |
//! | id of a ticket of a quota | `mcp-idempotent/ticket`, application, scope, number (32-bit big-endian) |
//! | id of the trace of the last sweep | `mcp-idempotent/last-sweep` |
//! | seed of downstream keys | `mcp-idempotent/downstream-seed`, record id (32 bytes), fingerprint (33 bytes, as stored), origin (64-bit big-endian) |
//! | downstream key | `mcp-idempotent/downstream-key`, seed (32 bytes), name of the step; the first 128 bits, as a UUID of version 8 |
//!
//! The hash is SHA-256, or HMAC-SHA-256 under a [`Secret`]. The ids of check records, witnesses and the trace
//! of the last sweep are never keyed. Nor is the fingerprint that is made of ids. A downstream key is not keyed again, because its seed is already. The tool is not
//! part of the id of an explicit key: one key used on two tools is one record, and so a conflict.
//! Nor is the version of the canonical form, so the id of an explicit key never changes.

mod check;
mod downstream;
mod hash;
mod map;
mod secret;
#[cfg(test)]
mod tests;

use std::fmt;

pub(crate) use self::check::{CheckRecord, check_fingerprint};
use self::hash::FieldHash;
pub(crate) use self::map::RecordMap;
pub use self::{
    downstream::{DownstreamKey, DownstreamSeed},
    secret::{InvalidSecret, Secret},
};
use crate::{
    canonical::CanonicalArguments,
    key::IdempotencyKey,
    scope::{Application, Scope},
};

/// The primary key of a record. [The module](self) says what is hashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordId([u8; 32]);

impl RecordId {
    /// Makes an id from its stored bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes as stored.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The id of the record that shows that the attempt with this token, at this record, is a guard.
    pub(crate) fn of_guard_witness(guarded: Self, token: i64) -> Self {
        let hash = FieldHash::new(None, hash::GUARD_WITNESS)
            .field(guarded.0)
            .field(token.to_be_bytes());
        Self(hash.finish())
    }

    /// The id of the record of one of a scope's tickets.
    pub(crate) fn of_ticket(
        application: &Application,
        scope: &Scope,
        number: u32,
        secret: Option<&Secret>,
    ) -> Self {
        let hash = FieldHash::new(secret.map(Secret::keyed_hash), hash::TICKET)
            .field(application.as_str())
            .field(scope.as_str())
            .field(number.to_be_bytes());
        Self(hash.finish())
    }

    /// The id of the record that says when a store was last swept.
    pub(crate) fn of_last_sweep() -> Self {
        Self(FieldHash::new(None, hash::LAST_SWEEP).finish())
    }

    /// The id of an explicit key's record.
    #[must_use]
    pub fn of_explicit(
        application: &Application,
        scope: &Scope,
        key: &IdempotencyKey,
        secret: Option<&Secret>,
    ) -> Self {
        let hash = FieldHash::new(secret.map(Secret::keyed_hash), hash::RECORD_ID)
            .field(application.as_str())
            .field(scope.as_str())
            .field("explicit")
            .field(key.as_str());
        Self(hash.finish())
    }

    fn of_derived(
        application: &Application,
        scope: &Scope,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        Self::of_arguments("derived", application, scope, tool, arguments, secret)
    }

    fn of_arguments(
        kind: &str,
        application: &Application,
        scope: &Scope,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        let hash = FieldHash::new(secret.map(Secret::keyed_hash), hash::RECORD_ID)
            .field(application.as_str())
            .field(scope.as_str())
            .field(kind)
            .field([CanonicalArguments::VERSION])
            .field(tool)
            .field(arguments.as_str());
        Self(hash.finish())
    }
}

/// 64 hex digits.
impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// 64 hex digits, in lower or upper case.
impl std::str::FromStr for RecordId {
    type Err = InvalidRecordId;

    fn from_str(text: &str) -> Result<Self, InvalidRecordId> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(InvalidRecordId);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                let value = char::from(*digit).to_digit(16).ok_or(InvalidRecordId)?;
                *byte = (*byte << 4) | u8::try_from(value).map_err(|_| InvalidRecordId)?;
            }
        }
        Ok(Self(bytes))
    }
}

/// The text is not a record id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidRecordId;

impl fmt::Display for InvalidRecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record's id is 64 hex digits")
    }
}

impl std::error::Error for InvalidRecordId {}

impl fmt::Debug for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_digest("RecordId", &self.0, f)
    }
}

/// A hash of what was asked, with the version of the canonical form that was used. [The
/// module](self) says what is hashed.
///
/// The record id is part of it, so that equal calls of two tenants do not look equal in a dump of
/// the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// The length of the stored form, in bytes.
    pub const STORED_LENGTH: usize = 33;

    fn new(
        id: &RecordId,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        let hash = FieldHash::new(secret.map(Secret::keyed_hash), hash::FINGERPRINT)
            .field(id.0)
            .field(tool)
            .field(arguments.as_str());
        Self {
            version: CanonicalArguments::VERSION,
            digest: hash.finish(),
        }
    }

    /// The fingerprint of a record of the engine's own. Version 0 keeps it apart from the
    /// fingerprints of calls.
    pub(crate) fn of_no_call(id: RecordId) -> Self {
        Self {
            version: 0,
            digest: id.0,
        }
    }

    /// The fingerprint of one of the calls that share the record of equal calls. It tells their keys
    /// apart.
    fn of_rotated_key(shared: &RecordId, own: &RecordId) -> Self {
        let hash = FieldHash::new(None, hash::ROTATED_KEY)
            .field(shared.0)
            .field(own.0);
        Self {
            version: 0,
            digest: hash.finish(),
        }
    }

    /// Reads the stored form: one byte of version, then the digest. `None` if the length is wrong.
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

    /// The version of the canonical form that was used. Fingerprints of two versions are never
    /// equal, even for equal calls.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
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

/// Which record a call belongs to, and what exactly it asked. Computed once, before the handler
/// runs.
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
    /// The identity of the same call under the previous secret, while that secret is being
    /// replaced.
    pub(crate) previous: Option<Box<PreviousIdentity>>,
    /// The record that it shares with equal calls under other explicit keys, if the policy minds them.
    pub(crate) equal: Option<Box<EqualCalls>>,
}

/// The record that equal calls under explicit keys share, and which of them this one is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EqualCalls {
    pub(crate) id: RecordId,
    pub(crate) fingerprint: Fingerprint,
}

/// The record of a call, as processes that only know the previous secret compute it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreviousIdentity {
    pub(crate) id: RecordId,
    pub(crate) fingerprint: Fingerprint,
}

impl Identity {
    /// Computes the identity of one call from its explicit `key`. Without a key, the identity is
    /// derived from `tool` and `arguments`.
    #[must_use]
    pub fn new(
        application: &Application,
        scope: &Scope,
        key: Option<&IdempotencyKey>,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        let (kind, id) = match key {
            Some(key) => (
                KeyKind::Explicit,
                RecordId::of_explicit(application, scope, key, secret),
            ),
            None => (
                KeyKind::Derived,
                RecordId::of_derived(application, scope, tool, arguments, secret),
            ),
        };
        Self {
            id,
            fingerprint: Fingerprint::new(&id, tool, arguments, secret),
            kind,
            key_prefix: key.map(|key| key.prefix().into()),
            previous: None,
            equal: None,
        }
    }

    /// Adds the record that equal calls under other explicit keys share with this one.
    pub(crate) fn with_equal_calls(
        mut self,
        application: &Application,
        scope: &Scope,
        tool: &str,
        arguments: &CanonicalArguments,
        secret: Option<&Secret>,
    ) -> Self {
        let id = RecordId::of_arguments("rotated", application, scope, tool, arguments, secret);
        self.equal = Some(Box::new(EqualCalls {
            id,
            fingerprint: Fingerprint::of_rotated_key(&id, &self.id),
        }));
        self
    }

    /// Adds the identity of the same call under the previous secret, unless both are the same.
    pub(crate) fn with_previous(mut self, previous: &Self) -> Self {
        if previous.id != self.id {
            self.previous = Some(Box::new(PreviousIdentity {
                id: previous.id,
                fingerprint: previous.fingerprint,
            }));
        }
        self
    }

    /// Whether a record with this fingerprint belongs to this call.
    pub(crate) fn is_of(&self, fingerprint: Fingerprint) -> bool {
        self.fingerprint == fingerprint
            || self
                .previous
                .as_ref()
                .is_some_and(|previous| previous.fingerprint == fingerprint)
    }
}

fn fmt_digest(name: &str, digest: &[u8; 32], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}(")?;
    for byte in &digest[..4] {
        write!(f, "{byte:02x}")?;
    }
    f.write_str("…)")
}
