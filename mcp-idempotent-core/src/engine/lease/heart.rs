//! One task that renews every running lease of an engine.
//!
//! One task per lease would cost every call a spawn. Renewing inside the handler's own task would
//! stop while the handler blocks its thread.

use std::{
    sync::{Arc, Mutex, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    held::Held,
    lapse::{NotCurrent, Renewed},
};
use crate::{engine::lent::lock, telemetry};

/// How many times the leases are checked within the shortest of their heartbeats.
const LOOKS_PER_HEARTBEAT: u32 = 4;
const SHORTEST_LOOK: Duration = Duration::from_millis(5);
/// After this many checks without any lease the task ends. The next lease starts it again.
const IDLE_LOOKS: u32 = 8;
/// The pauses between two tries to renew, while the store fails.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A try to renew that hangs is given up after half of the lease's remaining time, but not
/// before this.
const SHORTEST_TRY: Duration = Duration::from_secs(1);

/// Renews its leases until they end.
pub(in crate::engine) struct Heart {
    state: Mutex<State>,
    sooner: Notify,
}

struct State {
    leases: Vec<Weak<Held>>,
    /// Zero if no task is running.
    look_every: Duration,
}

impl State {
    /// Leases that have ended are removed at each check, and also here, before the list grows.
    fn push(&mut self, held: Weak<Held>) {
        if self.leases.len() == self.leases.capacity() {
            self.leases.retain(|held| held.strong_count() > 0);
            self.leases.reserve(self.leases.len().max(16));
        }
        self.leases.push(held);
    }
}

impl Heart {
    pub(in crate::engine) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                leases: Vec::new(),
                look_every: Duration::ZERO,
            }),
            sooner: Notify::new(),
        }
    }

    /// Renews a lease until [`Held::end`], or until its last owner drops it.
    pub(in crate::engine) fn keep(self: &Arc<Self>, held: &Arc<Held>) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let look_every = look_every(held);
        let runs = {
            let mut state = lock(&self.state);
            state.push(Arc::downgrade(held));
            let runs = !state.look_every.is_zero();
            if runs && state.look_every <= look_every {
                return;
            }
            state.look_every = look_every;
            runs
        };
        if runs {
            self.sooner.notify_one();
        } else {
            drop(runtime.spawn(Self::run(Running(Some(Arc::downgrade(self))))));
        }
        // A tokio worker keeps the task that it woke last in a slot that no other worker can take
        // from. If this thread then runs a handler that blocks it, that task would be stuck. So an
        // empty task takes the slot.
        drop(runtime.spawn(async {}));
    }

    async fn run(mut running: Running) {
        let mut idle = 0;
        while let Some(this) = running.heart() {
            let next = Instant::now() + lock(&this.state).look_every;
            tokio::select! {
                () = sleep_until(next) => {}
                () = this.sooner.notified() => continue,
            }
            let due = {
                let mut state = lock(&this.state);
                let due = state.look();
                idle = if state.leases.is_empty() { idle + 1 } else { 0 };
                if idle >= IDLE_LOOKS {
                    state.look_every = Duration::ZERO;
                    running.0 = None;
                    return;
                }
                due
            };
            for held in due {
                drop(tokio::spawn(renew(Renewing(held))));
            }
        }
    }
}

impl State {
    /// Removes leases that have ended, and returns those to renew now.
    fn look(&mut self) -> Vec<Arc<Held>> {
        let now = Instant::now();
        let (mut due, mut shortest) = (Vec::new(), None);
        self.leases.retain(|held| {
            let Some(held) = held.upgrade() else {
                return false;
            };
            if held.is_over() {
                return false;
            }
            let every = look_every(&held);
            shortest = Some(shortest.map_or(every, |shortest: Duration| shortest.min(every)));
            if held.due() <= now && !held.renewing.swap(true, Ordering::AcqRel) {
                due.push(held);
            }
            true
        });
        if let Some(shortest) = shortest {
            self.look_every = shortest;
        }
        due
    }
}

fn look_every(held: &Held) -> Duration {
    (held.terms.heartbeat / LOOKS_PER_HEARTBEAT).max(SHORTEST_LOOK)
}

/// Lives as long as the task. A runtime that shuts down drops it. The next lease then starts the
/// task again, in its own runtime.
struct Running(Option<Weak<Heart>>);

impl Running {
    fn heart(&self) -> Option<Arc<Heart>> {
        self.0.as_ref().and_then(Weak::upgrade)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(heart) = self.heart() {
            lock(&heart.state).look_every = Duration::ZERO;
        }
    }
}

/// Held while a lease is being renewed. The background task does not renew it a second time
/// meanwhile.
struct Renewing(Arc<Held>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.renewing.store(false, Ordering::Release);
    }
}

/// Renews one lease, with as many tries as it takes, until the lease ends.
async fn renew(renewing: Renewing) {
    let held = &renewing.0;
    let mut pause = FIRST_PAUSE;
    // A transaction that completes the lease holds the record, so the lease cannot be lost meanwhile.
    let mut is_locked = false;
    while !held.is_over() {
        // The handler may have renewed it in the meantime.
        let left = held.left();
        if left.is_zero() && !is_locked {
            held.lose("it could not be renewed in time");
            return;
        }
        let bound = if is_locked {
            SHORTEST_TRY
        } else {
            (left / 2).max(SHORTEST_TRY).min(left)
        };
        let renewed = timeout(bound, held.renew()).await;
        is_locked = matches!(renewed, Ok(Ok(Renewed::Locked)));
        match renewed {
            Ok(Ok(Renewed::Extended) | Err(NotCurrent::Fenced | NotCurrent::Completed)) => return,
            Ok(Ok(Renewed::Locked)) => {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Ok(Err(NotCurrent::Unconfirmed(error))) => {
                held.count(telemetry::renewal_failed);
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    tool = &*held.call.tool,
                    "a lease could not be renewed; trying again"
                );
                sleep(pause.min(held.left())).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(_) => {
                held.count(telemetry::renewal_failed);
                tracing::warn!(
                    tool = &*held.call.tool,
                    "the store is taking too long to renew a lease; trying again"
                );
            }
        }
    }
}
