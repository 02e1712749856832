//! The conformance suite on `MemoryStore`.

use std::time::Duration;

use mcp_idempotent_core::{
    MemoryStore, RecordId, operator_store_conformance, store_conformance,
    testing::{Harness, HarnessResult},
};

struct Memory(MemoryStore);

impl Harness for Memory {
    type Store = MemoryStore;

    fn store(&self) -> &MemoryStore {
        &self.0
    }

    async fn age(&self, _id: RecordId, by: Duration) -> HarnessResult {
        tokio::time::advance(by).await;
        Ok(())
    }
}

store_conformance!(async {
    tokio::time::pause();
    Memory(MemoryStore::new())
});

mod operator {
    use super::*;

    operator_store_conformance!(async {
        tokio::time::pause();
        Memory(MemoryStore::new())
    });
}
