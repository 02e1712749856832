//! What a handler wants done once its transaction is committed.

use std::{
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tracing::Instrument as _;

tokio::task_local! {
    /// That of the call that this task runs, if the call has a transaction.
    static CURRENT: Option<AfterCommit>;
}

/// What is to be done once the transaction of a call is committed: waking a worker, dropping a cache entry,
/// telling other sessions. A handler in transaction mode takes it as a parameter, beside its transaction.
///
/// 1. What [`run`](Self::run) was given runs **at most once**, in a task of its own, after the database has
///    confirmed the commit. The caller's answer does not wait for it;
///    [`Idempotency::shutdown`](crate::Idempotency::shutdown) does.
/// 2. It does not run if the transaction was rolled back, if nobody knows whether it was committed, or for a
///    replay.
/// 3. It is lost if the process ends in between. What has to happen whenever the effect happened belongs in an
///    outbox: a row that the handler writes through its transaction, and a worker that reads it. See
///    `docs/outside-effects.md`.
///
/// ```
/// # #[cfg(feature = "sqlite")] mod example {
/// use mcp_idempotent_tower::{AfterCommit, Idempotency, SqliteStore, idempotent};
/// use rmcp::{ErrorData, handler::server::wrapper::Parameters, schemars, tool, tool_router};
/// use sqlx::SqliteConnection;
/// use tokio::sync::watch;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Entry { text: String }
///
/// #[derive(Clone)]
/// struct Ledger { idempotency: Idempotency<SqliteStore>, last: watch::Sender<String> }
///
/// #[tool_router(server_handler)]
/// impl Ledger {
///     /// Books an entry.
///     #[idempotent]
///     #[tool]
///     async fn book(
///         &self,
///         tx: &mut SqliteConnection,
///         after: AfterCommit,
///         Parameters(entry): Parameters<Entry>,
///     ) -> Result<String, ErrorData> {
///         sqlx::query("INSERT INTO entry (text) VALUES (?1)")
///             .bind(&entry.text)
///             .execute(tx)
///             .await
///             .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
///         let last = self.last.clone();
///         after.run(async move {
///             last.send_replace(entry.text);
///         });
///         Ok("booked".into())
///     }
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct AfterCommit(Arc<Mutex<Wanted>>);

enum Wanted {
    Once(Vec<BoxFuture<'static, ()>>),
    /// The call has ended.
    Ended,
}

impl AfterCommit {
    pub(in crate::call) fn new() -> Self {
        Self(Arc::new(Mutex::new(Wanted::Once(Vec::new()))))
    }

    pub(in crate::call) fn of_this_task() -> Option<Self> {
        CURRENT.try_with(Clone::clone).ok().flatten()
    }

    /// Runs `future` once the call's transaction is committed, after those that were given before it. A panic in
    /// it is logged. After the call has ended it is dropped, and that is logged.
    pub fn run(&self, future: impl Future<Output = ()> + Send + 'static) {
        match &mut *self.lock() {
            Wanted::Once(futures) => futures.push(Box::pin(future)),
            Wanted::Ended => tracing::error!(
                "something was to be done after the commit of a call that has ended; it is not done"
            ),
        }
    }

    /// Makes this the one of the task that runs `handler`.
    pub(in crate::call) fn during<F: Future>(self, handler: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(Some(self), handler)
    }

    /// Runs a handler without a transaction, whatever call is around it.
    pub(in crate::call) fn none_during<F: Future>(handler: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(None, handler)
    }

    /// The call has ended. What was wanted runs if it was committed, and holds `until_then` meanwhile.
    pub(in crate::call) fn ended(&self, is_committed: bool, until_then: impl Send + 'static) {
        let wanted = std::mem::replace(&mut *self.lock(), Wanted::Ended);
        let Wanted::Once(futures) = wanted else {
            return;
        };
        if !is_committed || futures.is_empty() {
            return;
        }
        let done = async move {
            let _held = until_then;
            for future in futures {
                if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                    tracing::error!("something that was to be done after a commit panicked");
                }
            }
        };
        drop(tokio::spawn(done.in_current_span()));
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        // No user code runs under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AfterCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterCommit").finish_non_exhaustive()
    }
}
