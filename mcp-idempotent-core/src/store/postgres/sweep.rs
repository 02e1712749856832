//! Removes expired records in small batches, which wait for nobody.

use super::{
    literal::Argument,
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::store::StoreError;

/// The most records that one transaction of a sweep touches.
const BATCH: u32 = 1000;

pub(super) async fn sweep(store: &PostgresStore, limit: u32) -> Result<u64, StoreError> {
    let mut swept = 0;
    for step in [Step::SweepEnded, Step::SweepResults, Step::SweepRenewed] {
        loop {
            let left = u64::from(limit).saturating_sub(swept);
            let size = u32::try_from(left).map_or(BATCH, |left| left.min(BATCH));
            if size == 0 {
                return Ok(swept);
            }
            let changed = sweep_batch(store, step, size).await?;
            // A renewed record is only moved on, to be looked at later.
            if step != Step::SweepRenewed {
                swept += changed;
            }
            if changed < u64::from(size) {
                break;
            }
        }
    }
    Ok(swept)
}

async fn sweep_batch(store: &PostgresStore, step: Step, size: u32) -> Result<u64, StoreError> {
    let mut tries = Tries::patient(store, "the sweep failed");
    let session = tries.session().await?;
    let size = [Argument::Integer(i64::from(size))];
    let swept = tries.run(session, Purpose::Commit, |batch, _| {
        batch.begin_short().call(step, &size).steps([Step::Commit])
    });
    let (session, answer) = swept.await?.through();
    session.release();
    Ok(answer.affected(step))
}
