//! Removes expired records in small batches, which wait for nobody.
//!
//! There is no index on the time of expiry: it would cost every call more than a sweep costs. So a
//! sweep walks through the table by the rows' places, slice by slice, and continues where the last
//! one stopped.

use std::sync::atomic::Ordering;

use sqlx::Row as _;

use super::{
    literal::Argument,
    statement::Step,
    store::PostgresStore,
    tries::{Purpose, Tries},
};
use crate::store::StoreError;

/// The most records that one statement of a sweep touches.
const BATCH: u32 = 1000;
/// How many blocks of the table one statement looks through: 2 MiB.
const SLICE: u64 = 256;
/// How much of the table each run of a regular sweep looks through: at least 8 MiB, and at least
/// this part of it.
const FEWEST_BLOCKS: u64 = 1024;
const PART: u64 = 20;
/// The text of a row's place is shorter than this.
const PLACE_LENGTH: usize = 32;

const SWEEPING: &str = "the sweep failed";

/// How much of the table to look through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    Part,
}

pub(super) async fn sweep(
    store: &PostgresStore,
    limit: u32,
    extent: Extent,
) -> Result<u64, StoreError> {
    let blocks = blocks(store).await?;
    let mut left_blocks = match extent {
        Extent::Whole => blocks,
        Extent::Part => blocks.min(FEWEST_BLOCKS.max(blocks / PART)),
    };
    let mut swept = 0;
    while left_blocks > 0 {
        let left = u64::from(limit).saturating_sub(swept);
        let most = u32::try_from(left).map_or(BATCH, |left| left.min(BATCH));
        if most == 0 {
            break;
        }
        let from = match store.inner.swept_to.load(Ordering::Relaxed) {
            from if from < blocks => from,
            _ => 0,
        };
        // A slice may be shorter at the end of the table.
        let to = (from + SLICE.min(left_blocks)).min(blocks);
        let (changed, is_done) = sweep_slice(store, from, to, most).await?;
        swept += changed;
        if is_done {
            left_blocks -= to - from;
            store.inner.swept_to.store(to, Ordering::Relaxed);
        }
    }
    Ok(swept)
}

async fn blocks(store: &PostgresStore) -> Result<u64, StoreError> {
    let mut tries = Tries::patient(store, SWEEPING);
    let session = tries.session().await?;
    let asked = tries.run(session, Purpose::Read, |batch, _| {
        batch.steps([Step::Blocks])
    });
    let (session, answer) = asked.await?.through();
    session.release();
    let blocks = answer
        .one(Step::Blocks)
        .and_then(|row| row.try_get::<i64, _>(0));
    let blocks = blocks.map_err(|error| tries.failed(error))?;
    Ok(u64::try_from(blocks).unwrap_or(0))
}

/// Returns how many records it changed, at most `most`, and whether nothing is left to do in the
/// slice.
async fn sweep_slice(
    store: &PostgresStore,
    from: u64,
    to: u64,
    most: u32,
) -> Result<(u64, bool), StoreError> {
    let [from, to] = [from, to].map(|block| format!("({block},0)"));
    let mut changed = 0;
    for step in [Step::SweepEnded, Step::SweepResults] {
        let left = u64::from(most) - changed;
        let mut tries = Tries::patient(store, SWEEPING);
        let session = tries.session().await?;
        let arguments = [
            Argument::Plain(&from, PLACE_LENGTH),
            Argument::Plain(&to, PLACE_LENGTH),
            Argument::Integer(i64::try_from(left).unwrap_or(i64::MAX)),
        ];
        let swept = tries.run(session, Purpose::Commit, |batch, _| {
            let begun = batch.begin_short();
            begun.call(step, &arguments).steps([Step::Commit])
        });
        let (session, answer) = swept.await?.through();
        session.release();
        let by_this = answer.affected(step);
        changed += by_this;
        if by_this >= left {
            return Ok((changed, false));
        }
    }
    Ok((changed, true))
}
