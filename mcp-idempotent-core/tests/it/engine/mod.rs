//! The engine, on `MemoryStore`: what a caller is answered.

mod joining;
mod lease;
pub(crate) mod leases;
mod logs;
#[cfg(feature = "metrics")]
mod outcomes;
mod quota;
mod refusals;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod rotation;
mod secret;
mod sweeps;
#[cfg(feature = "sqlite")]
mod transaction;
mod unprotected;

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_core::{
    Answer, Begun, Bytes, CallInfo, CanonicalArguments, Engine, HandlerResult, IdempotencyKey,
    Identity, LeaseHandle, MemoryStore, OnError, Policy, Request, ResultKind, Scope, Store, Wait,
};

/// What a handler returned, in these tests.
#[derive(Clone)]
pub(crate) struct Reply {
    kind: ResultKind,
    text: String,
}

impl Reply {
    pub(crate) fn new(kind: ResultKind, text: &str) -> Self {
        Self {
            kind,
            text: text.to_owned(),
        }
    }
}

impl HandlerResult for Reply {
    fn kind(&self) -> ResultKind {
        self.kind
    }

    fn encode(&self) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Bytes::from(self.text.clone()))
    }
}

/// One server: an engine, its policy, and how often its handler ran.
pub(crate) struct Server<S = MemoryStore> {
    pub(crate) engine: Engine<S>,
    policy: Arc<Policy>,
    executions: Arc<AtomicUsize>,
}

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            policy: Arc::clone(&self.policy),
            executions: Arc::clone(&self.executions),
        }
    }
}

impl Server {
    fn new(change: impl FnOnce(&mut Policy)) -> Self {
        Self::on(MemoryStore::new(), change)
    }
}

impl<S: Store> Server<S> {
    pub(crate) fn on(store: S, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = Policy::default();
        policy.on_error = OnError::InDoubt;
        policy.wait = Wait::UpTo(Duration::from_secs(30));
        change(&mut policy);
        Self {
            engine: Engine::new("tests", store),
            policy: Arc::new(policy),
            executions: Arc::default(),
        }
    }

    /// The same server with other rules.
    fn under(&self, change: impl FnOnce(&mut Policy)) -> Self {
        let mut policy = Policy::clone(&self.policy);
        change(&mut policy);
        Self {
            policy: Arc::new(policy),
            ..self.clone()
        }
    }

    fn identity(&self, key: Option<&str>, arguments: &str) -> Identity {
        let arguments: serde_json::Value = serde_json::from_str(arguments).unwrap();
        self.engine.identify_under(
            &self.policy,
            &Scope::new("alice"),
            key.map(|key| IdempotencyKey::new(key).unwrap()).as_ref(),
            "tool",
            &CanonicalArguments::new(arguments.as_object(), &[]),
        )
    }

    fn request(&self, identity: Identity) -> Request<'_> {
        Request::new(
            CallInfo::new("tool", Scope::new("alice")),
            identity,
            &self.policy,
        )
    }

    /// One call, as a server makes it.
    pub(crate) async fn call(&self, key: &str, handler: impl Future<Output = Reply>) -> Outcome {
        self.call_as(self.request(self.identity(Some(key), "{}")), handler)
            .await
    }

    async fn call_as(&self, request: Request<'_>, handler: impl Future<Output = Reply>) -> Outcome {
        self.call_with(request, async |_| handler.await).await
    }

    /// One call whose handler asks for its lease.
    async fn call_with(
        &self,
        request: Request<'_>,
        handler: impl AsyncFnOnce(LeaseHandle) -> Reply,
    ) -> Outcome {
        let mut attempt = match self.engine.begin_lease(request).await {
            Begun::Answer(answer) => return Outcome::from(answer, None),
            Begun::Attempt(attempt) => attempt,
            Begun::FailOpen => panic!("the store is there"),
        };
        let handle = attempt.handle();
        let reply = attempt
            .run(async {
                self.executions.fetch_add(1, Ordering::SeqCst);
                handler(handle).await
            })
            .await
            .unwrap_or_else(|_| Reply::new(ResultKind::Interrupted, "panicked"));
        Outcome::from(attempt.finish(&reply).await, Some(reply))
    }

    pub(crate) fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }
}

/// What a caller was answered, in short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Own(String),
    Unrecorded(String),
    LeftInDoubt(String, &'static str),
    Replayed(String),
    Joined(String),
    Refused(&'static str, &'static str, &'static str),
}

impl Outcome {
    fn from(answer: Answer, own: Option<Reply>) -> Self {
        match answer {
            Answer::Executed => Self::Own(own.unwrap().text),
            Answer::Unrecorded => Self::Unrecorded(own.unwrap().text),
            Answer::LeftInDoubt(refusal) => {
                Self::LeftInDoubt(own.unwrap().text, refusal.action().as_str())
            }
            Answer::Replayed(replay) => {
                let text = String::from_utf8(replay.response.to_vec()).unwrap();
                if replay.joined {
                    Self::Joined(text)
                } else {
                    Self::Replayed(text)
                }
            }
            Answer::Refused(refusal) => Self::Refused(
                refusal.kind().as_str(),
                refusal.outcome().as_str(),
                refusal.action().as_str(),
            ),
        }
    }
}

/// The handler's own error, after which an operator has to look.
pub(crate) fn in_doubt(text: &str) -> Outcome {
    Outcome::LeftInDoubt(text.to_owned(), "ask_operator")
}

/// The handler's own error, after which a retry finds out.
pub(crate) fn in_doubt_until_retried(text: &str) -> Outcome {
    Outcome::LeftInDoubt(text.to_owned(), "retry_same_key")
}

pub(crate) fn own(text: &str) -> Outcome {
    Outcome::Own(text.to_owned())
}

fn replayed(text: &str) -> Outcome {
    Outcome::Replayed(text.to_owned())
}

fn joined(text: &str) -> Outcome {
    Outcome::Joined(text.to_owned())
}

pub(crate) async fn succeed(text: &str) -> Reply {
    Reply::new(ResultKind::Success, text)
}

/// Yields until the condition holds, for at most half a minute. The clock is the real one: on a busy machine
/// any number of turns may be too few.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the condition did not come true"
        );
        tokio::task::yield_now().await;
    }
}

/// What this thread logs.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Takes what is logged until the guard is dropped.
    pub(crate) fn capture(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
