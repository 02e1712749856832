//! One task that renews every running lease of an engine.
//!
//! A task for each lease would cost every call a spawn; renewing inside the handler's own task would
//! stop while the handler keeps its thread.

use std::{
    sync::{Arc, Mutex, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::{Kept, NotCurrent, lock};
use crate::store::Store;

/// How often the leases are looked at within the shortest heartbeat among them.
const LOOKS_PER_HEARTBEAT: u32 = 4;
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
/// After how many looks at nothing the task ends; the next lease starts it again.
const IDLE_LOOKS: u32 = 8;
/// Between two tries to renew while the store fails.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Renews the leases that were given to it, until they end.
pub(in crate::engine) struct Heart<S> {
    state: Mutex<State<S>>,
    sooner: Notify,
}

struct State<S> {
    leases: Vec<Beat<S>>,
    /// Zero while no task runs.
    look_every: Duration,
}

struct Beat<S> {
    kept: Weak<Kept<S>>,
    due: Instant,
}

impl<S: Store> Heart<S> {
    pub(in crate::engine) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                leases: Vec::new(),
                look_every: Duration::ZERO,
            }),
            sooner: Notify::new(),
        }
    }

    /// Renews a lease until [`Kept::end`], or until nobody has it any more.
    pub(in crate::engine) fn keep(self: &Arc<Self>, kept: &Arc<Kept<S>>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let terms = kept.watched.terms;
        let look_every = (terms.heartbeat / LOOKS_PER_HEARTBEAT).max(SHORTEST_LOOK);
        let mut state = lock(&self.state);
        state.leases.push(Beat {
            kept: Arc::downgrade(kept),
            due: Instant::now() + terms.heartbeat,
        });
        if state.look_every.is_zero() {
            state.look_every = look_every;
            drop(state);
            drop(runtime.spawn(Self::run(Arc::downgrade(self))));
        } else if look_every < state.look_every {
            state.look_every = look_every;
            drop(state);
            self.sooner.notify_one();
        }
    }

    async fn run(heart: Weak<Self>) {
        let mut idle = 0;
        loop {
            let Some(this) = heart.upgrade() else {
                return;
            };
            let every = lock(&this.state).look_every;
            let next = Instant::now() + every;
            tokio::select! {
                () = sleep_until(next) => {}
                () = this.sooner.notified() => continue,
            }
            let due = {
                let mut state = lock(&this.state);
                let now = Instant::now();
                let mut due = Vec::new();
                state.leases.retain(|beat| {
                    let Some(kept) = beat.kept.upgrade() else {
                        return false;
                    };
                    if kept.watched.ended.load(Ordering::Acquire) {
                        return false;
                    }
                    if beat.due > now {
                        return true;
                    }
                    due.push(kept);
                    false
                });
                idle = if state.leases.is_empty() && due.is_empty() {
                    idle + 1
                } else {
                    0
                };
                if idle >= IDLE_LOOKS {
                    state.look_every = Duration::ZERO;
                    return;
                }
                due
            };
            for kept in due {
                let heart = Weak::clone(&heart);
                drop(tokio::spawn(async move {
                    if renew(&kept).await
                        && let Some(heart) = heart.upgrade()
                    {
                        let due = Instant::now() + kept.watched.terms.heartbeat;
                        lock(&heart.state).leases.push(Beat {
                            kept: Arc::downgrade(&kept),
                            due,
                        });
                    }
                }));
            }
        }
    }
}

/// Renews one lease, however often it takes, while it lasts. Answers whether it goes on.
async fn renew<S: Store>(kept: &Kept<S>) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        if kept.watched.ended.load(Ordering::Acquire) {
            return false;
        }
        // The handler may have renewed it meanwhile.
        let ends = kept.watched.ends();
        if Instant::now() >= ends {
            kept.watched.lose("it could not be renewed in time");
            return false;
        }
        match timeout_at(ends, kept.renew()).await {
            Ok(Ok(())) => return true,
            Ok(Err(NotCurrent::Fenced)) => return false,
            Ok(Err(NotCurrent::Unconfirmed(error))) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a lease could not be renewed; trying again"
                );
                sleep(pause.min(ends.saturating_duration_since(Instant::now()))).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) => {}
        }
    }
}
