//! Many duplicates of one slow call, beside callers of other keys.

use std::{sync::Arc, time::Duration};

use mcp_idempotent_core::{Engine, store::postgres::PostgresStore};
use tokio::sync::Notify;

use crate::{
    call::{ARGUMENTS, expect_executed, expect_replayed, fresh_key, in_transaction, request},
    scene::{Scene, crowd, first_call, write_in},
};

const DUPLICATES: usize = 64;
/// As many as the pool has connections.
const OTHERS: u32 = Scene::CONNECTIONS;

/// The time of one of the others' calls with nothing beside them.
pub(crate) async fn undisturbed(scene: &Arc<Scene>, calls: u32) -> Duration {
    let time = others(scene, calls).await;
    scene.settle().await;
    time
}

async fn others(scene: &Arc<Scene>, calls: u32) -> Duration {
    crowd(scene, OTHERS, calls, |scene| async move {
        first_call(&scene.pooled).await;
    })
    .await
}

/// The same beside one call that runs all the while and [`DUPLICATES`] more of its key on
/// `waiting`: the engine that it runs on, or another one, as another process has. Both use the
/// others' pool. Tells `held` how many connections were in use before the others started.
pub(crate) async fn beside(
    scene: &Arc<Scene>,
    calls: u32,
    waiting: &Engine<PostgresStore>,
    held: &dyn Fn(usize),
) -> Duration {
    let key = Arc::new(fresh_key());
    let (runs, end) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let slow = tokio::spawn({
        let (scene, key) = (Arc::clone(scene), Arc::clone(&key));
        let (runs, end) = (Arc::clone(&runs), Arc::clone(&end));
        async move {
            let request = request(&scene.pooled, &key, &ARGUMENTS);
            let answer = in_transaction(&scene.pooled, request, |_| {
                Box::pin(async move {
                    runs.notify_one();
                    end.notified().await;
                })
            });
            expect_executed(answer.await);
        }
    });
    runs.notified().await;
    let duplicates: Vec<_> = (0..DUPLICATES)
        .map(|_| {
            let (engine, key) = (waiting.clone(), Arc::clone(&key));
            tokio::spawn(async move {
                let request = request(&engine, &key, &ARGUMENTS);
                expect_replayed(write_in(&engine, request).await);
            })
        })
        .collect();
    // On another engine one of them asks for all.
    while waiting.waiting() < DUPLICATES - 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    held(scene.pool.size() as usize - scene.pool.num_idle());
    let time = others(scene, calls).await;
    end.notify_one();
    slow.await.expect("the slow call");
    for duplicate in duplicates {
        duplicate.await.expect("a duplicate");
    }
    scene.settle().await;
    time
}
