//! What our transactions are known by.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::statement::Argument;

/// What a transaction is known by in the record that it writes, or by its own lock. Below zero, so
/// that it is never a fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(pub(super) i64);

impl Mark {
    pub(super) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let random = KEYS.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)) >> 1;
        Self(-i64::try_from(random).unwrap_or(i64::MAX).max(1))
    }

    pub(super) const fn argument(self) -> Argument<'static> {
        Argument::Integer(self.0)
    }
}

/// The savepoint under which handlers write: it lives as long as the transaction, whoever ends it.
/// The name is the store's own, so that no handler and no other store sets one like it by accident.
/// It is the same for every call, because pg_stat_statements before Postgres 17 keeps an entry for
/// each name.
pub(super) fn savepoint() -> String {
    format!("mcp_idempotent_{:016x}", RandomState::new().hash_one(0))
}
