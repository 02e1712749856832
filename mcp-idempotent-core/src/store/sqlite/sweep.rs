//! Removes expired records in small batches.

use sqlx::{Arguments as _, sqlite::SqliteArguments};

use super::{queue::Line, store::SqliteStore};
use crate::store::StoreError;

/// How many rows one statement may change, so that it holds the writer for at most a few
/// milliseconds.
const BATCH: u32 = 250;

pub(super) async fn sweep(store: &SqliteStore, limit: u32) -> Result<u64, StoreError> {
    let statements = &store.shared.statements;
    let mut left = limit;
    for statement in [&statements.purge, &statements.bury] {
        while left > 0 {
            let batch = left.min(BATCH);
            let mut arguments = SqliteArguments::default();
            let arguments = arguments.add(batch).map(|()| arguments);
            let changed = store
                .write("sweeping", Line::Ordinary, statement, arguments)
                .await?
                .len();
            let changed = u32::try_from(changed).unwrap_or(batch);
            left -= changed.min(left);
            if changed < batch {
                break;
            }
        }
    }
    Ok(u64::from(limit - left))
}
