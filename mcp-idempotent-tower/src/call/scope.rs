//! Whose key it is, and who may have an answer.

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use mcp_idempotent_core::{
    Authorize, KeyKind, Refusal, Scope,
    error::{Action, CommitOutcome, ErrorKind},
    store::{CallInfo, Reach},
};
use rmcp::{RoleServer, service::RequestContext};

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
#[derive(Clone, Default)]
pub(crate) enum ScopeSource {
    /// One fixed scope on stdio; refused over HTTP.
    #[default]
    ByTransport,
    /// The same for every call, because the author said so.
    Fixed(Scope),
    /// Resolved from the request.
    Resolver(Arc<Resolver>),
    /// Resolved from the head of an HTTP request; as by transport where there is none.
    HttpResolver(Arc<HttpResolver>),
}

impl fmt::Debug for ScopeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByTransport => "ByTransport",
            Self::Fixed(_) => "Fixed",
            Self::Resolver(_) => "Resolver",
            Self::HttpResolver(_) => "HttpResolver",
        })
    }
}

/// The scope of a stdio server: there is one caller, the process that started it. Stable across
/// restarts.
const STDIO: &str = "stdio";

impl ScopeSource {
    pub(crate) fn resolve(
        &self,
        context: &RequestContext<RoleServer>,
        reach: Reach,
        key: KeyKind,
    ) -> Result<Scope, Refusal> {
        let parts = context.extensions.get::<http::request::Parts>();
        match (self, parts) {
            (Self::Fixed(scope), _) => Ok(scope.clone()),
            (Self::Resolver(resolver), _) => resolver(context).map_err(Refusal::from),
            (Self::HttpResolver(resolver), Some(parts)) => resolver(parts).map_err(Refusal::from),
            (Self::ByTransport | Self::HttpResolver(_), _) => {
                if parts.is_some() {
                    return Err(misconfigured(
                        "This server is reached over HTTP and does not say whose idempotency keys \
                         it is given, so the call was not executed. Its author must call \
                         `IdempotencyBuilder::with_scope_from_http` (or, where every caller may see every \
                         result, `with_scope_shared_by_all_callers`).",
                    ));
                }
                if reach == Reach::Network && key == KeyKind::Derived {
                    return Err(misconfigured(
                        "This server shares its idempotency store with other processes and got a \
                         call without a key, so equal calls of different users could be taken for \
                         retries. The call was not executed. Send a key in \
                         `_meta[\"idempotency-key\"]`, or its author must call \
                         `IdempotencyBuilder::with_fixed_scope` or `with_scope_from`.",
                    ));
                }
                Ok(Scope::new(STDIO))
            }
        }
    }
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

/// The hook, with the request that it looks at.
pub(crate) struct AuthorizeRequest<'a> {
    pub(crate) hook: &'a AuthorizeHook,
    pub(crate) context: &'a RequestContext<RoleServer>,
}

impl Authorize for AuthorizeRequest<'_> {
    fn authorize<'a>(
        &'a self,
        call: &'a CallInfo,
    ) -> Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send + 'a>> {
        Box::pin(async move {
            (self.hook.0)(self.context, &call.tool)
                .await
                .map_err(Refusal::from)
        })
    }
}
