//! Maps whose keys are record ids.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
};

use super::RecordId;

/// A map from record ids. The ids are hashes already, so two multiplications replace SipHash. These
/// have keys of their own: who may choose idempotency keys freely could otherwise find many ids that
/// meet in one place of the map.
pub(crate) type RecordMap<V> = HashMap<RecordId, V, IdState>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct IdState([u64; 2]);

impl Default for IdState {
    fn default() -> Self {
        let random = RandomState::new();
        Self([random.hash_one(0), random.hash_one(1)])
    }
}

impl BuildHasher for IdState {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher {
            keys: self.0,
            hash: 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct IdHasher {
    keys: [u64; 2],
    hash: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut halves = bytes.chunks_exact(8).map(|half| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(half);
            u64::from_le_bytes(bytes)
        });
        let mut half = || halves.next().unwrap_or_default();
        let [first, second] = self.keys;
        let mut hash = (half() ^ first).wrapping_mul(second | 1);
        hash = (hash ^ (hash >> 32) ^ half()).wrapping_mul(first | 1);
        self.hash = hash ^ (hash >> 32);
    }

    /// The length of an id says nothing.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_differ_in_any_of_the_first_sixteen_bytes_are_spread_over_the_map() {
        let state = IdState::default();
        let mut hashes = Vec::new();
        for place in 0..16 {
            for value in 0..=255 {
                let mut id = [0; 32];
                id[place] = value;
                hashes.push(state.hash_one(RecordId::from_bytes(id)));
            }
        }
        hashes.sort_unstable();
        hashes.dedup();
        // All of them but for the id of nothing but zeros, which comes sixteen times.
        assert_eq!(hashes.len(), 16 * 255 + 1);
        // A map looks at the lowest and at the highest bits.
        for bits in [0, 57] {
            let mut seen = [false; 128];
            for hash in &hashes {
                seen[usize::try_from((hash >> bits) & 127).unwrap()] = true;
            }
            assert!(seen.into_iter().all(|seen| seen), "{bits}");
        }
    }
}
