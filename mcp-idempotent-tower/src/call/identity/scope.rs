//! Whose key a call carries, and who may have an answer.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use mcp_idempotent_core::{
    Refusal, Scope,
    error::{Action, CommitOutcome, ErrorKind},
    store::Reach,
};
use rmcp::{RoleServer, service::RequestContext};

use crate::idempotency::error::BuildError;

/// Why a caller gets no answer. The text is sent to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    message: String,
}

impl Denied {
    /// Says why, to the caller.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Denied {}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        // Whether there is a record is none of this caller's business, so the outcome is unknown.
        Self::new(
            ErrorKind::Unauthorized,
            CommitOutcome::Unknown,
            Action::AskOperator,
            denied.message,
        )
    }
}

type Resolver = dyn Fn(&RequestContext<RoleServer>) -> Result<Scope, Denied> + Send + Sync;
type HttpResolver = dyn Fn(&http::request::Parts) -> Result<Scope, Denied> + Send + Sync;
type Hook = dyn for<'a> Fn(
        &'a RequestContext<RoleServer>,
        &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<(), Denied>> + Send + 'a>>
    + Send
    + Sync;

/// Where a call's scope comes from.
#[derive(Clone)]
pub(crate) enum ScopeSource {
    /// The author says that there is one caller, and not over HTTP.
    OneCaller,
    /// The author says that every call has this scope.
    Fixed(Scope),
    /// Resolved from the request.
    Resolver(Arc<Resolver>),
    /// Resolved from the head of an HTTP request.
    OverHttp(Arc<HttpResolver>),
    /// Resolved from the head of an HTTP request. A call without one is from the one caller.
    OverHttpOrOneCaller(Arc<HttpResolver>),
}

impl fmt::Debug for ScopeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneCaller => "OneCaller",
            Self::Fixed(_) => "Fixed",
            Self::Resolver(_) => "Resolver",
            Self::OverHttp(_) => "OverHttp",
            Self::OverHttpOrOneCaller(_) => "OverHttpOrOneCaller",
        })
    }
}

/// The scope of the one caller, the process that started this server. Stable across restarts.
const STDIO: &str = "stdio";

/// A scope setting, and the builder's method that made it.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) with: &'static str,
    pub(crate) source: ScopeSource,
}

/// Why a call has no scope.
pub(crate) enum NoScope {
    /// The author's resolver refused the caller.
    Denied(Denied),
    /// No setting covers such calls. The text is for the caller.
    NotSaid(&'static str),
}

impl From<NoScope> for Refusal {
    fn from(no_scope: NoScope) -> Self {
        match no_scope {
            NoScope::Denied(denied) => denied.into(),
            NoScope::NotSaid(message) => misconfigured(message),
        }
    }
}

impl ScopeSource {
    /// Combines the author's settings.
    ///
    /// # Errors
    ///
    /// There is none, they contradict each other, or they cannot hold for a store with this reach.
    pub(crate) fn settle(said: Vec<Said>, reach: Reach) -> Result<Self, BuildError> {
        let mut said = said.into_iter();
        let source = match (said.next(), said.next(), said.next()) {
            (None, ..) => return Err(BuildError::new(NOT_SAID.to_owned())),
            (Some(only), None, _) => only.source,
            (Some(one), Some(other), third) => match (one.source, other.source, third) {
                (Self::OneCaller, Self::OverHttp(resolver), None)
                | (Self::OverHttp(resolver), Self::OneCaller, None) => {
                    Self::OverHttpOrOneCaller(resolver)
                }
                _ => return Err(contradiction(one.with, other.with)),
            },
        };
        match source {
            Self::OneCaller if reach == Reach::Network => {
                Err(BuildError::new(SHARED_OVER_A_NETWORK.to_owned()))
            }
            Self::OverHttpOrOneCaller(_) if reach == Reach::Network => {
                Err(BuildError::new(SHARED_OVER_A_NETWORK_TOO.to_owned()))
            }
            source => Ok(source),
        }
    }

    /// # Errors
    ///
    /// The call has no scope.
    pub(crate) fn resolve(&self, context: &RequestContext<RoleServer>) -> Result<Scope, NoScope> {
        match self {
            Self::Resolver(resolver) => resolver(context).map_err(NoScope::Denied),
            source => source.resolve_from_head(context.extensions.get()),
        }
    }

    /// As [`resolve`](Self::resolve), for a call that did not come through rmcp, from the head of its HTTP
    /// request.
    ///
    /// # Errors
    ///
    /// The call has no scope.
    pub(crate) fn resolve_from_head(
        &self,
        head: Option<&http::request::Parts>,
    ) -> Result<Scope, NoScope> {
        match (self, head) {
            (Self::Fixed(scope), _) => Ok(scope.clone()),
            (Self::OverHttp(resolver) | Self::OverHttpOrOneCaller(resolver), Some(head)) => {
                resolver(head).map_err(NoScope::Denied)
            }
            (Self::OneCaller | Self::OverHttpOrOneCaller(_), None) => Ok(Scope::new(STDIO)),
            (Self::OneCaller, Some(_)) => Err(NoScope::NotSaid(NOT_SAID_OVER_HTTP)),
            (Self::OverHttp(_), None) => Err(NoScope::NotSaid(NOT_SAID_BUT_OVER_HTTP)),
            (Self::Resolver(_), _) => Err(NoScope::NotSaid(NEEDS_RMCP)),
        }
    }

    /// Whether it needs what only rmcp knows of a call.
    #[cfg(feature = "relay")]
    pub(crate) const fn needs_rmcp(&self) -> bool {
        matches!(self, Self::Resolver(_))
    }
}

const NOT_SAID: &str = "this server does not say whose idempotency keys it receives; call one of \
    `with_one_caller()` (only the process that started this server calls it, over stdio), \
    `with_fixed_scope(\"…\")` (it acts for one principal), `with_scope_from_http(…)` or \
    `with_scope_from(…)` (each caller has its own), and \
    `with_scope_shared_by_all_callers()` (every caller may see every result)";

const SHARED_OVER_A_NETWORK: &str = "`with_one_caller` cannot be used with a store shared between \
    machines: all their callers would count as one; name this server's with \
    `Idempotency::builder(..).with_fixed_scope(\"…\")` instead of `for_stdio` or `with_one_caller`";

const SHARED_OVER_A_NETWORK_TOO: &str = "`with_one_caller` cannot be used with a store shared \
    between machines: all their callers without HTTP would count as one; name \
    them with `Idempotency::builder(..).with_scope_from(…)`, which sees calls with and without an \
    HTTP head, instead of `with_one_caller` and `with_scope_from_http`";

const NOT_SAID_OVER_HTTP: &str = "This server is reached over HTTP and does not say whose \
    idempotency keys it is given there, so the call was not executed. Its author must call \
    `IdempotencyBuilder::with_scope_from_http` (or, where every caller may see every result, \
    `with_scope_shared_by_all_callers`).";

const NOT_SAID_BUT_OVER_HTTP: &str = "This server says whose idempotency keys it is given over \
    HTTP, and this call did not come over HTTP, so it was not executed. Its author must call \
    `IdempotencyBuilder::with_one_caller` (where only the process that started the server calls \
    it so) or `with_scope_from`.";

const NEEDS_RMCP: &str = "This server needs rmcp's request context to tell whose idempotency keys it \
    receives, and this call did not come through rmcp, so it was not executed. Its author must call \
    `IdempotencyBuilder::with_scope_from_http`, `with_one_caller` or `with_fixed_scope`.";

fn contradiction(one: &str, other: &str) -> BuildError {
    BuildError::new(format!(
        "`{one}` and `{other}` both say whose idempotency keys this server is given; say it once \
         (only `with_one_caller` and `with_scope_from_http` go together, each once)"
    ))
}

fn misconfigured(message: &str) -> Refusal {
    tracing::error!(
        message,
        "a call was refused because the server is not set up for it"
    );
    Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    )
}

/// The author's `authorize` hook.
#[derive(Clone)]
pub(crate) struct AuthorizeHook(pub(crate) Arc<Hook>);

impl fmt::Debug for AuthorizeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthorizeHook")
    }
}
