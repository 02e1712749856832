//! Which caller in this process writes next.
//!
//! First come, first served, in two lines. Short statements that keep a lease alive, or end one, go
//! ahead of every caller that may hold the writer for long. Behind a full queue of handlers they
//! would come too late, and the leases would be lost.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::{Connection as _, SqlitePool};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    error::{busy, store_error},
    writer::Writer,
};
use crate::store::StoreError;

/// A handler's turn of at least this length is followed by a rest of 1/16 of it, at most 30 ms,
/// before the next handler's turn. SQLite's lock has no queue. Without a rest between two long
/// turns, another process that polls for the lock (to renew a lease, for instance) would have to
/// hit the exact moment in which it changes hands.
const LONG_TURN: Duration = Duration::from_millis(20);
const RESTS: u32 = 16;
const LONGEST_REST: Duration = Duration::from_millis(30);

/// Where to queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// For a short statement that a lease depends on. It takes precedence over the other line.
    Lease,
    /// For everything else.
    Ordinary,
}

/// Keeps the writing connection, and the queue for it.
#[derive(Debug, Clone)]
pub(super) struct WriterQueue {
    pool: SqlitePool,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a caller has the turn. If not, nobody is waiting either.
    taken: bool,
    /// The connection, while no caller has the turn.
    kept: Option<Writer>,
    /// No handler gets the turn before this time.
    rests_until: Option<Instant>,
    leases: VecDeque<oneshot::Sender<Turn>>,
    ordinary: VecDeque<oneshot::Sender<Turn>>,
}

impl State {
    /// The next caller that is still waiting.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        for line in [&mut self.leases, &mut self.ordinary] {
            while let Some(next) = line.pop_front() {
                if !next.is_closed() {
                    return Some(next);
                }
            }
        }
        None
    }
}

/// The right to write. Wherever it is dropped, it passes to the next caller in the queue.
#[derive(Debug)]
struct Turn {
    state: Arc<Mutex<State>>,
    kept: Option<Writer>,
    /// When a handler got the writer in this turn.
    handled_since: Option<Instant>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let kept = self.kept.take();
        let handled = self.handled_since.map(|since| since.elapsed());
        let next = {
            let mut state = lock(&self.state);
            if let Some(handled) = handled.filter(|handled| *handled >= LONG_TURN) {
                state.rests_until = Some(Instant::now() + (handled / RESTS).min(LONGEST_REST));
            }
            let Some(next) = state.next() else {
                state.taken = false;
                state.kept = kept;
                return;
            };
            next
        };
        let turn = Self {
            state: Arc::clone(&self.state),
            kept,
            handled_since: None,
        };
        // If the receiver has stopped waiting, the turn is dropped here and passes on.
        drop(next.send(turn));
    }
}

impl WriterQueue {
    pub(super) fn new(pool: SqlitePool) -> Self {
        Self {
            pool,
            state: Arc::default(),
        }
    }

    /// The turn, if it is free.
    fn turn(&self, state: &mut State) -> Option<Turn> {
        if state.taken {
            return None;
        }
        state.taken = true;
        Some(Turn {
            state: Arc::clone(&self.state),
            kept: state.kept.take(),
            handled_since: None,
        })
    }

    /// The writing connection, if it is free.
    pub(super) async fn try_take(&self, deadline: Instant) -> Result<Option<Checkout>, StoreError> {
        let turn = self.turn(&mut lock(&self.state));
        match turn {
            Some(turn) => {
                self.rest(deadline).await;
                self.fill(turn, deadline).await.map(Some)
            }
            None => Ok(None),
        }
    }

    /// Queues for the writing connection.
    pub(super) async fn take(&self, line: Line, deadline: Instant) -> Result<Checkout, StoreError> {
        let turn = self.wait(line, Some(deadline)).await?;
        if line == Line::Ordinary {
            self.rest(deadline).await;
        }
        self.fill(turn, deadline).await
    }

    async fn rest(&self, deadline: Instant) {
        let until = lock(&self.state).rests_until.take();
        if let Some(until) = until {
            sleep_until(until.min(deadline)).await;
        }
    }

    async fn wait(&self, line: Line, deadline: Option<Instant>) -> Result<Turn, StoreError> {
        let receiver = {
            let mut state = lock(&self.state);
            if let Some(turn) = self.turn(&mut state) {
                return Ok(turn);
            }
            let (sender, receiver) = oneshot::channel();
            match line {
                Line::Lease => state.leases.push_back(sender),
                Line::Ordinary => state.ordinary.push_back(sender),
            }
            receiver
        };
        called(receiver, deadline).await
    }

    /// Lets the lease line write first, if it has callers. For a caller that has the turn but waits
    /// for the file's lock, which a handler elsewhere may hold for long.
    pub(super) async fn let_leases_pass(
        &self,
        checkout: Checkout,
        deadline: Instant,
    ) -> Result<Checkout, StoreError> {
        let receiver = {
            let mut state = lock(&self.state);
            if state.leases.iter().all(oneshot::Sender::is_closed) {
                return Ok(checkout);
            }
            let (sender, receiver) = oneshot::channel();
            state.ordinary.push_front(sender);
            receiver
        };
        checkout.give_back();
        let turn = called(receiver, Some(deadline)).await?;
        self.fill(turn, deadline).await
    }

    async fn fill(&self, mut turn: Turn, deadline: Instant) -> Result<Checkout, StoreError> {
        if self.pool.is_closed() {
            turn.kept = None;
            return Err(store_error("writing", sqlx::Error::PoolClosed));
        }
        let lifetime = self.pool.options().get_max_lifetime();
        let writer = match turn.kept.take() {
            Some(writer) if lifetime.is_none_or(|most| writer.opened.elapsed() < most) => writer,
            outlived => {
                drop(outlived);
                timeout_at(deadline, Box::pin(Writer::open(&self.pool, deadline)))
                    .await
                    .map_err(|_| busy("a connection"))??
            }
        };
        Ok(Checkout { writer, turn })
    }

    /// Closes the connection, whatever its state, and opens a new one.
    pub(super) async fn renew(
        &self,
        checkout: Checkout,
        deadline: Instant,
    ) -> Result<Checkout, StoreError> {
        let Checkout { writer, turn } = checkout;
        drop(writer);
        self.fill(turn, deadline).await
    }

    /// Waits for the current writer, then closes the writing connection.
    pub(super) async fn close(&self) {
        let Ok(mut turn) = self.wait(Line::Ordinary, None).await else {
            return;
        };
        if let Some(writer) = turn.kept.take()
            && let Err(error) = writer.connection.close().await
        {
            tracing::warn!(%error, "closing the writing connection failed");
        }
    }
}

async fn called(
    receiver: oneshot::Receiver<Turn>,
    deadline: Option<Instant>,
) -> Result<Turn, StoreError> {
    let called = match deadline {
        Some(deadline) => timeout_at(deadline, receiver)
            .await
            .map_err(|_| busy("the writer"))?,
        None => receiver.await,
    };
    // No error is expected here: the caller that has the turn always passes it on.
    called.map_err(|_| busy("the writer"))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // No user code runs under the lock, so a poisoned one still guards consistent data.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writing connection, in use. If it is dropped, it is closed, which rolls back anything open
/// on it. Only [`give_back`](Self::give_back) keeps it, and only from a known state.
#[derive(Debug)]
pub(super) struct Checkout {
    // Dropped before the turn, so that the next caller finds this connection closing, not open.
    pub(super) writer: Writer,
    turn: Turn,
}

impl Checkout {
    /// From now until this is dropped, a handler has the connection.
    pub(super) fn is_handled(&mut self) {
        self.turn.handled_since = Some(Instant::now());
    }

    pub(super) fn give_back(mut self) {
        self.writer.watch.let_go();
        self.turn.kept = Some(self.writer);
    }

    /// Rolls back. Keeps the connection if that succeeded.
    pub(super) async fn roll_back_and_give_back(mut self) {
        match self.writer.roll_back().await {
            Ok(()) => self.give_back(),
            Err(error) => tracing::warn!(%error, "rolling back failed; the connection is closed"),
        }
    }
}
