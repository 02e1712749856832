//! The server's side: calls that are sent to it, and the answers that they wait for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use mcp_idempotent_core::OnDoubt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{
    answer::Answered,
    call::RelayedCall,
    outlet::{Outlet, Unsent},
    rule::Believed,
};

/// What the server answered.
#[derive(Debug)]
pub(super) enum Response {
    /// Its message, with its share of the memory for answers.
    Message(Bytes, Option<OwnedSemaphorePermit>),
    /// A message that was too long to be read, or no JSON.
    Unreadable,
}

/// Each of the relay's own requests has an id that no client uses, so no answer can be mistaken for
/// another, whatever ids the client chooses.
#[derive(Debug)]
pub(super) struct Upstream {
    out: Outlet,
    first: u64,
    next: AtomicU64,
    /// Who waits for which answer. `None` once the server has ended.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<Response>>>>,
    memory: Arc<Semaphore>,
    most: usize,
}

/// How large a first id may be. It and those that follow have at most 14 digits: some servers know only doubles, and write
/// no more digits of one.
const LARGEST_FIRST_ID: u64 = 1 << 46;

impl Upstream {
    /// Holds at most this many bytes of answers that are not written yet.
    pub(super) fn new(out: Outlet, memory: usize) -> Self {
        let most = memory
            .min(Semaphore::MAX_PERMITS >> 1)
            .min(u32::MAX as usize);
        let first = random() % LARGEST_FIRST_ID;
        Self {
            out,
            first,
            next: AtomicU64::new(first),
            waiting: Mutex::new(Some(HashMap::new())),
            memory: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    pub(super) const fn out(&self) -> &Outlet {
        &self.out
    }

    /// A request with an id of our own.
    ///
    /// # Errors
    ///
    /// The server has ended.
    pub(super) fn open(self: &Arc<Self>) -> Result<Open, Ended> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, response) = oneshot::channel();
        self.waiting().as_mut().ok_or(Ended)?.insert(id, sender);
        Ok(Open {
            upstream: Arc::clone(self),
            id,
            response,
        })
    }

    /// Sends a call, and waits for its answer.
    pub(super) async fn forward(
        self: Arc<Self>,
        call: RelayedCall,
        on_doubt: OnDoubt,
        believed: Believed,
    ) -> Answered {
        let Ok(open) = self.open() else {
            return Answered::not_sent();
        };
        let key_maker = call.key_maker;
        let _progress = call.pending.sent(open.id);
        match self.out.send(&call.under(&open.id.to_string())).await {
            Err(Unsent::Wholly) => return Answered::not_sent(),
            Err(Unsent::Partly) => return Answered::lost(on_doubt),
            Ok(()) => drop(call),
        }
        match open.response().await {
            Some(Response::Message(message, held)) => {
                Answered::by_server(message, held, key_maker, believed)
            }
            Some(Response::Unreadable) => Answered::unreadable(),
            None => Answered::lost(on_doubt),
        }
    }

    /// Whether this is the id of a request of our own, answered or not.
    pub(super) fn is_ours(&self, id: u64) -> bool {
        (self.first..self.next.load(Ordering::Relaxed)).contains(&id)
    }

    /// Hands over a response. Waits while too many answers are not written yet.
    pub(super) async fn answered(&self, id: u64, message: Bytes) {
        let Some(waiting) = self.take(id) else {
            return;
        };
        let share = message.len().clamp(1, self.most);
        let share = u32::try_from(share).unwrap_or(u32::MAX);
        let held = Arc::clone(&self.memory).acquire_many_owned(share).await;
        let _ = waiting.send(Response::Message(message, held.ok()));
    }

    /// The answer to this request was too long to be read, or no JSON.
    pub(super) fn answered_unreadably(&self, id: u64) {
        if let Some(waiting) = self.take(id) {
            let _ = waiting.send(Response::Unreadable);
        }
    }

    /// Nobody waits for this answer any more.
    pub(super) fn give_up(&self, id: u64) {
        drop(self.take(id));
    }

    fn take(&self, id: u64) -> Option<oneshot::Sender<Response>> {
        self.waiting().as_mut()?.remove(&id)
    }

    /// No answer comes any more.
    pub(super) fn end(&self) {
        self.waiting().take();
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Response>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended;

/// A request of our own that waits for its answer.
#[derive(Debug)]
pub(super) struct Open {
    upstream: Arc<Upstream>,
    pub(super) id: u64,
    response: oneshot::Receiver<Response>,
}

impl Open {
    /// The response, or `None` if none comes.
    pub(super) async fn response(mut self) -> Option<Response> {
        (&mut self.response).await.ok()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.upstream.give_up(self.id);
    }
}

/// A name that no other run has.
pub(super) fn random_name() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// A random number, from the keys that the standard library gives each map.
fn random() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}
