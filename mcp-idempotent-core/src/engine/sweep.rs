//! Removes records past their retention, in the background. This file has the timer and the rate; `sweep.rs` of each store
//! removes. A claim removes the expired record of its own key.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher as _, Hasher as _},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, sync::watch, task::JoinHandle, time::sleep};

use super::{Engine, swept};
use crate::{
    store::{Store, StoreError},
    telemetry::Sweep,
};

/// Without a shortest pause, a sweep could query the store without rest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Settings of the background sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweepSettings {
    /// The time between two sweeps. Each pause is between 0.5 and 1.5 times this, so that processes
    /// that share a store do not all sweep at once. Default: one minute.
    pub every: Duration,
    /// The most records that one statement removes. Default: 500.
    pub batch: u32,
    /// The most records that are removed per second. Default: 5000.
    pub per_second: u32,
}

impl Default for SweepSettings {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(60),
            batch: 500,
            per_second: 5000,
        }
    }
}

impl SweepSettings {
    /// How long to rest after a batch, to keep to the rate.
    fn rest(&self, removed: u64) -> Duration {
        let removed = u32::try_from(removed).unwrap_or(u32::MAX);
        Duration::from_secs(1) * removed / self.per_second.max(1)
    }

    fn pause(&self) -> Duration {
        let every = self.every.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        every / 2 + every.mul_f64(fraction())
    }
}

/// A new random number each time, evenly spread in 0..1.
fn fraction() -> f64 {
    let random = RandomState::new().build_hasher().finish();
    let high = u32::try_from(random >> 32).unwrap_or(u32::MAX);
    f64::from(high) / f64::from(u32::MAX)
}

/// A background sweep. It ends when this is dropped, or when the engine's last clone is dropped.
#[must_use = "the sweep ends when it is dropped"]
pub struct Sweeper {
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Sweeper {
    /// Ends the sweep, after waiting for the current batch.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take() {
            drop(task.await);
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

impl fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeper").finish_non_exhaustive()
    }
}

impl<S: Store> Engine<S> {
    /// Removes records past their retention, in batches at the settings' rate, until none is left.
    /// Returns how many records it removed or reduced to a tombstone.
    ///
    /// # Errors
    ///
    /// The store could not be reached. What was removed stays removed.
    pub async fn sweep(&self, settings: &SweepSettings) -> Result<u64, StoreError> {
        let (mut removed, measured) = (0, Sweep::begin(&self.inner.application));
        loop {
            let batch = self.inner.store.sweep(settings.batch.max(1)).await?;
            removed += batch;
            measured.removed(batch);
            if batch < u64::from(settings.batch.max(1)) {
                measured.end();
                self.note_sweep().await;
                return Ok(removed);
            }
            sleep(settings.rest(batch)).await;
        }
    }

    /// Sweeps in the background until the returned [`Sweeper`] or the engine's last clone is
    /// dropped. If the store fails, the sweep tries again after the next pause. Without a runtime
    /// it does nothing.
    pub fn sweep_in_background(&self, settings: SweepSettings) -> Sweeper {
        let (stop, stopped) = watch::channel(false);
        let inner = Arc::downgrade(&self.inner);
        let task = Handle::try_current()
            .ok()
            .map(|runtime| runtime.spawn(run(inner, settings, stopped)));
        Sweeper { stop, task }
    }
}

async fn run<S: Store>(
    engine: Weak<super::Inner<S>>,
    settings: SweepSettings,
    mut stopped: watch::Receiver<bool>,
) {
    let mut rest = settings.pause();
    let mut sweep = None;
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            () = sleep(rest) => {}
        }
        // Held only during a batch, so that the sweep ends with the engine.
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let batch = settings.batch.max(1);
        let measured = sweep
            .take()
            .unwrap_or_else(|| Sweep::begin(&engine.application));
        rest = match engine.store.sweep_part(batch).await {
            Ok(removed) => {
                measured.removed(removed);
                if removed >= u64::from(batch) {
                    sweep = Some(measured);
                    settings.rest(removed)
                } else {
                    measured.end();
                    swept::note(&*engine.store).await;
                    settings.pause()
                }
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "expired records could not be removed; trying again later"
                );
                settings.pause()
            }
        };
    }
}
