//! The key that a handler passes on.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher as _, Hasher as _},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{Fingerprint, RecordId, Secret, hash, hash::FieldHash};

/// What the downstream keys of one record are made from: the same for each of its attempts.
#[derive(Clone)]
pub struct DownstreamSeed([u8; 32]);

impl DownstreamSeed {
    pub(crate) fn new(
        id: &RecordId,
        fingerprint: &Fingerprint,
        origin: i64,
        secret: Option<&Secret>,
    ) -> Self {
        let hash = FieldHash::new(secret.map(Secret::keyed_hash), hash::DOWNSTREAM_SEED)
            .field(id.0)
            .field(fingerprint.to_stored())
            .field(origin.to_be_bytes());
        Self(hash.finish())
    }

    /// For a call that nothing protects: no other call has these keys.
    #[must_use]
    pub fn unique() -> Self {
        let mut hash = FieldHash::new(None, hash::DOWNSTREAM_SEED);
        for _ in 0..4 {
            let random = RandomState::new().build_hasher().finish();
            hash = hash.field(random.to_be_bytes());
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(
            hash.field(now.unwrap_or_default().as_nanos().to_be_bytes())
                .finish(),
        )
    }

    /// The key of one step.
    #[must_use]
    pub fn key(&self, step: &str) -> DownstreamKey {
        let hash = FieldHash::new(None, hash::DOWNSTREAM_KEY)
            .field(self.0)
            .field(step);
        DownstreamKey::of(hash.finish())
    }
}

impl fmt::Debug for DownstreamSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DownstreamSeed(…)")
    }
}

/// A key for a call that the handler makes to another system, for instance in the header
/// `Idempotency-Key` of a payment API.
///
/// It is the same for every attempt at one call, another one for each named step, and says nothing
/// of the client's key or scope. (Without a [`Secret`] somebody who guesses application, scope, key,
/// tool, arguments and the attempt's number can confirm the guess.)
///
/// It is written as a UUID of version 8 (RFC 9562, section 5.8): 36 characters, which the limits of
/// the common payment APIs all admit. What it is a hash of: [the module](super).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DownstreamKey {
    text: Box<str>,
}

impl DownstreamKey {
    fn of(digest: [u8; 32]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let mut text = String::with_capacity(36);
        for (position, byte) in bytes.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for nibble in [byte >> 4, byte & 0x0f] {
                text.push(char::from_digit(nibble.into(), 16).unwrap_or('0'));
            }
        }
        Self { text: text.into() }
    }

    /// The key as text: 36 characters of visible ASCII.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl AsRef<str> for DownstreamKey {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
