//! The keys of the advisory locks, and the marks by which our transactions are recognised.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use sha2::{Digest, Sha256};

use super::literal::Argument;
use crate::store::Claim;

/// Places one schema's locks in the database, whose advisory locks share one space of numbers.
///
/// Record id and fingerprint are already hashes. So eight of their bytes, combined with eight bytes
/// of a hash of the schema's name, are as good as a hash of both. A collision only makes two keys
/// wait for each other, because the locks are tried and never waited for.
#[derive(Debug)]
pub(super) struct Locks {
    call: i64,
    key: i64,
    transaction: i64,
}

impl Locks {
    pub(super) fn new(schema: &str) -> Self {
        let of = |what: &[u8]| {
            let mut hash = Sha256::new();
            for part in [b"mcp-idempotent ", what, &[0], schema.as_bytes()] {
                hash.update(part);
            }
            let digest: [u8; 32] = hash.finalize().into();
            first_eight(&digest)
        };
        Self {
            call: of(b"call"),
            key: of(b"key"),
            transaction: of(b"transaction"),
        }
    }

    /// The lock of this exact call: key, tool and arguments. It is a lock of two numbers. The first
    /// is the same for all calls under one key, so it shows whether another one is running.
    pub(super) fn of_call(&self, claim: &Claim) -> [i32; 2] {
        let [_version, digest @ ..] = claim.fingerprint.to_stored();
        let upper = |lock: i64| i32::try_from(lock >> 32).unwrap_or(0);
        [
            upper(self.call ^ first_eight(claim.id.as_bytes())),
            upper(self.call ^ first_eight(&digest)),
        ]
    }

    /// The lock of the key.
    pub(super) fn of_key(&self, claim: &Claim) -> i64 {
        self.key ^ first_eight(claim.id.as_bytes())
    }

    /// Both, as arguments of the statements that try them.
    pub(super) fn all_of(&self, claim: &Claim) -> [Argument<'static>; 3] {
        let [of_key, of_call] = self.of_call(claim);
        [of_key.into(), of_call.into(), self.of_key(claim)].map(Argument::Integer)
    }

    /// The lock by which a transaction without a claim is recognised while it is open.
    pub(super) fn of_transaction(&self, mark: Mark) -> i64 {
        self.transaction ^ mark.0
    }
}

fn first_eight(bytes: &[u8; 32]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = *bytes;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The number by which a transaction is recognised, in the record that it writes or by its own
/// lock. It is below zero, so that it is never a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(pub(super) i64);

impl Mark {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let random = KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)) >> 1;
        Self(-i64::try_from(random).unwrap_or(i64::MAX).max(1))
    }
}

/// The name of the savepoint under which handlers write. The savepoint lives as long as the
/// transaction, no matter who ends it. Each store has its own name, so that no handler and no other
/// store uses it by accident. It is the same for every call, because pg_stat_statements before
/// Postgres 17 keeps an entry for each name.
pub(super) fn savepoint() -> String {
    format!("mcp_idempotent_{:016x}", RandomState::new().hash_one(0))
}
