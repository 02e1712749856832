//! What is known of the last sweep.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mcp_idempotent_core::{Engine, MemoryStore, RecordQuery, SweepSettings};
use tokio::time::{advance, sleep};

/// For how many seconds nobody has swept. The store shows its times, which the tests move, by the clock on the wall,
/// which they do not.
async fn unswept(engine: &Engine<MemoryStore>) -> Option<u64> {
    let last = engine.last_sweep().await.unwrap()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let last = Duration::from_micros(last.as_micros().try_into().unwrap());
    Some(now.saturating_sub(last).as_secs())
}

#[tokio::test(start_paused = true)]
async fn the_last_sweep_is_remembered_to_the_minute_and_is_no_call() {
    let engine = Engine::new("shop", MemoryStore::new());
    assert_eq!(unswept(&engine).await, None);
    let sweep = async || {
        engine.sweep(&SweepSettings::default()).await.unwrap();
        unswept(&engine).await.unwrap()
    };
    assert!(sweep().await < 30);
    advance(Duration::from_secs(50)).await;
    assert!(
        sweep().await >= 49,
        "within a minute nothing is written again"
    );
    for passed in [11, 3600, 200 * 24 * 3600] {
        advance(Duration::from_secs(passed)).await;
        assert!(unswept(&engine).await.unwrap() >= passed - 1);
        assert!(sweep().await < 30);
        advance(Duration::from_secs(50)).await;
    }
    let query = RecordQuery::default();
    assert_eq!(engine.list(&query).await.unwrap().len(), 0);
    assert_eq!(engine.count_in_doubt().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_in_the_background_is_remembered() {
    let engine = Engine::new("shop", MemoryStore::new());
    let _sweeper = engine.sweep_in_background(SweepSettings::default());
    sleep(Duration::from_secs(100)).await;
    assert!(unswept(&engine).await.is_some());
}
