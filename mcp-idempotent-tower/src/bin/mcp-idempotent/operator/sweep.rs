//! `records sweep`: removes records that are past their retention.

use clap::Args;
use mcp_idempotent_tower::{Store, core::Engine};
use serde_json::json;

use super::{
    Ended, Failure, print,
    store::{StoreOptions, with_store},
};

/// The most records that one request removes.
const BATCH: u32 = 500;

#[derive(Debug, Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    store: StoreOptions,
}

impl Sweep {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        let opened = self.store.open().await?;
        let removed = with_store!(opened, store => sweep(&Engine::new("", store)).await?);
        if self.store.json {
            print::line(format_args!("{:#}", json!({"removed": removed})))?;
        } else {
            print::line(format_args!(
                "{removed} records were removed, or reduced to a tombstone. Records in progress or in doubt stay."
            ))?;
        }
        Ok(Ended::Done)
    }
}

async fn sweep<S: Store>(engine: &Engine<S>) -> Result<u64, Failure> {
    let mut removed = 0;
    loop {
        let batch = engine.store().sweep(BATCH).await?;
        removed += batch;
        if batch < u64::from(BATCH) {
            engine.note_sweep().await;
            return Ok(removed);
        }
        print::progress(format_args!("{removed} removed"));
    }
}
