//! What is checked, and how.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use http::request::Parts;
use serde_json::{Map, Value};

use super::faults::StoreFaults;

/// The head of a request, as the scope resolver of a server over HTTP sees it.
pub(super) type EditHead = Arc<dyn Fn(&mut Parts) + Send + Sync>;

pub(super) type Counter = Arc<dyn Fn() -> BoxFuture<'static, Result<u64, String>> + Send + Sync>;

/// A call, and a way to count what it does. See the [module](super).
#[derive(Clone)]
pub struct Check {
    pub(super) tool: String,
    pub(super) arguments: Map<String, Value>,
    pub(super) other_arguments: Option<Map<String, Value>>,
    pub(super) failures: Vec<(String, Map<String, Value>)>,
    pub(super) key_argument: Option<String>,
    pub(super) effects: Counter,
    pub(super) executions: Option<Counter>,
    pub(super) patience: Duration,
    pub(super) racers: usize,
    pub(super) callers: Option<[EditHead; 2]>,
    pub(super) faults: Option<StoreFaults>,
}

impl Check {
    /// In an argument: replaced by another text for each intended operation.
    pub const UNIQUE: &'static str = "{unique}";

    const PATIENCE: Duration = Duration::from_secs(40);

    /// A check of this tool. `effects` counts all effects that the tool has had so far, those of earlier
    /// tests included: rows of a table, say. One call has one effect. Nobody else may cause effects
    /// meanwhile.
    pub fn new<F, Fut>(tool: impl Into<String>, effects: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Count> + Send + 'static,
    {
        Self {
            tool: tool.into(),
            arguments: Map::new(),
            other_arguments: None,
            failures: Vec::new(),
            key_argument: None,
            effects: counter(effects),
            executions: None,
            patience: Self::PATIENCE,
            racers: 8,
            callers: None,
            faults: None,
        }
    }

    /// The arguments of a call that succeeds, as a JSON object. [`UNIQUE`](Self::UNIQUE) in a string
    /// makes each intended operation one of its own, for tools that do not do the same thing twice.
    #[must_use]
    pub fn with_arguments(mut self, arguments: Value) -> Self {
        self.arguments = object(arguments);
        self
    }

    /// Arguments of a different call, which would succeed as well. Without them the first number or
    /// string of the arguments is changed.
    #[must_use]
    pub fn with_other_arguments(mut self, arguments: Value) -> Self {
        self.other_arguments = Some(object(arguments));
        self
    }

    /// Arguments with which the tool fails, best after it has acted; and what happens then, in a few words
    /// for the report, such as `a panic`. May be called several times.
    #[must_use]
    pub fn with_failure(mut self, what: impl Into<String>, arguments: Value) -> Self {
        self.failures.push((what.into(), object(arguments)));
        self
    }

    /// Sends the key in this top-level argument, and not in `_meta["idempotency-key"]`.
    #[must_use]
    pub fn with_key_argument(mut self, name: impl Into<String>) -> Self {
        self.key_argument = Some(name.into());
        self
    }

    /// Counts how often the handler was entered, for the report. More than one execution is not wrong in
    /// itself: one that was rolled back did nothing.
    #[must_use]
    pub fn with_executions<F, Fut>(mut self, executions: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Count> + Send + 'static,
    {
        self.executions = Some(counter(executions));
        self
    }

    /// How long to wait for an answer. The default is 40 seconds, which is longer than a duplicate waits
    /// for a running call.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many calls are made at the same time. The default is 8; fewer than 2 are 2.
    #[must_use]
    pub const fn with_racers(mut self, racers: usize) -> Self {
        self.racers = if racers < 2 { 2 } else { racers };
        self
    }

    /// For a server in this process that tells callers apart: puts the head of an HTTP request of two
    /// different callers into each request, as the HTTP transport does. Nearly all calls come from the
    /// first one.
    #[must_use]
    pub fn with_callers<A, B>(mut self, first: A, other: B) -> Self
    where
        A: Fn(&mut Parts) + Send + Sync + 'static,
        B: Fn(&mut Parts) + Send + Sync + 'static,
    {
        self.callers = Some([Arc::new(first), Arc::new(other)]);
        self
    }

    /// For a server in this process on a [`FaultyStore`](super::FaultyStore): plays failures of the store
    /// too.
    #[must_use]
    pub fn with_store_faults(mut self, faults: StoreFaults) -> Self {
        self.faults = Some(faults);
        self
    }

    /// The arguments of another call.
    pub(super) fn others(&self) -> Option<Map<String, Value>> {
        if let Some(other) = &self.other_arguments {
            return Some(other.clone());
        }
        let mut other = self.arguments.clone();
        let is_changed = other.iter_mut().any(|(name, value)| match value {
            _ if self.key_argument.as_ref() == Some(name) => false,
            Value::String(text) => {
                text.push('!');
                true
            }
            Value::Number(number) => match number.as_i64().and_then(|it| it.checked_add(1)) {
                Some(next) => {
                    *value = next.into();
                    true
                }
                None => false,
            },
            _ => false,
        });
        is_changed.then_some(other)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("tool", &self.tool)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// A number of effects, or why it is not known: any integer that is not negative, alone or in a `Result`.
pub trait Count: sealed::Count {}

impl<T: sealed::Count> Count for T {}

mod sealed {
    use std::fmt::Display;

    pub trait Count {
        fn count(self) -> Result<u64, String>;
    }

    macro_rules! count {
        ($($integer:ty)+) => {$(
            impl Count for $integer {
                fn count(self) -> Result<u64, String> {
                    u64::try_from(self).map_err(|error| error.to_string())
                }
            }
        )+};
    }

    count!(u32 u64 usize i32 i64);

    impl<T: Count, E: Display> Count for Result<T, E> {
        fn count(self) -> Result<u64, String> {
            self.map_err(|error| error.to_string())?.count()
        }
    }
}

fn counter<F, Fut>(count: F) -> Counter
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Count> + Send + 'static,
{
    Arc::new(move || {
        let counted = count();
        Box::pin(async move { sealed::Count::count(counted.await) })
    })
}

fn object(arguments: Value) -> Map<String, Value> {
    match arguments {
        Value::Object(arguments) => arguments,
        other => panic!("arguments are a JSON object, not {other}"),
    }
}
