//! A whole server behind one tower layer, without touching its handlers.
//!
//! # What happens to a call
//!
//! 1. A tool that is annotated with [`#[idempotent]`](macro@crate::idempotent) is recognised by the
//!    contract in its definition's `_meta`, and its calls pass: the annotation deduplicates them. A
//!    call that a layer above has in hand passes too.
//! 2. A tool has the [`Rule`] that names it, else that of the first predicate that holds, else the
//!    layer's default. Under [`Rule::untouched`] its calls pass, and neither the scope
//!    resolver nor an `authorize` hook is asked. A call under any other rule is refused if one of them
//!    denies its caller, with or without a key.
//! 3. A call with an explicit key is protected. A call without one passes, unless the rule asks for
//!    [derived or required keys](Rule::with_key).
//! 4. A tool whose annotations say `readOnlyHint: true` is protected by an explicit key alone,
//!    whatever its rule asks of keys. Without a key its calls pass; under a default rule in
//!    transaction mode no transaction is opened for them.
//! 5. The services below the layer are made ready after the call has its claim. So a replay, and a
//!    duplicate that waits, hold no permit of a limit below; the layer itself is always ready.
//! 6. What is recorded follows the handler's result. An error of another service below frees the key
//!    where that service was not ready, or says that it refused the call before the handler
//!    (`Overloaded`), and the layer has seen itself that the handler was not entered. Any other (a
//!    timeout that dropped the handler, a load limit under a retry that had called it before, a
//!    refusal from a service in the handler's place) leaves a lease in doubt, and rolls a
//!    transaction back.
//! 7. A malformed call enters the handler, as the layer sees it: rmcp parses the arguments inside.
//!    So rmcp's answer is a result with `isError` like any other, and under an explicit key it is
//!    recorded: a retry gets it again, and a corrected call needs a new key. A tool that does not
//!    exist is an error like any other: what it means for the key is the rule's `on_error`. No text
//!    and no code frees a key, because a handler that acted may answer with the same ones. The
//!    annotation parses the arguments itself, and frees the key where they do not parse.
//! 8. What a handler passes on of another server in the names of this crate (a replay's marker, a
//!    refusal, a mark of [`NotExecuted`](crate::NotExecuted)) is marked as that server's before it is
//!    recorded or sent ([`UPSTREAM`](crate::wire::UPSTREAM)).
//! 9. A caller that is dropped (a timeout above, a client that went away) stops neither the
//!    handler, nor the record, nor those who wait for it.
//!
//! # Order
//!
//! Services above the layer see every call, services below only those that execute.
//!
//! - `Timeout` belongs **above**: there it bounds how long a caller waits, and a retry with the same
//!   key gets the result. Below, it cuts handlers off in the middle, and a lease is in doubt at the
//!   first retry.
//! - `ConcurrencyLimit`, `RateLimit` and `Buffer` of handlers belong **below**: above, waiting
//!   duplicates hold their permits. Measured, with 64 duplicates of a call of 250 ms under a limit of
//!   16: a call of another key takes 0.3 ms with the limit below, and all the 250 ms with it above.
//! - `LoadShed` above the layer sheds what a limit between the two refuses; right above a limit
//!   below the layer, it refuses new executions, while replays are still answered.
//!
//! # Caveats
//!
//! - Tool definitions are looked up once for each name, and again when `tools/list` passes by. Keep
//!   the `ToolRouter` in a field: the generated `get_tool` and `call_tool` otherwise build it anew
//!   on every call.
//! - Over HTTP build the server once and clone it in the factory of `StreamableHttpService`:
//!   `ConcurrencyLimitLayer` makes a new semaphore each time that a server is wrapped.
//! - The layer in a [`ServiceBuilder`](tower::ServiceBuilder) given to
//!   [`layered`](crate::ServerExt::layered) protects, but only
//!   [`idempotent`](crate::ServerExt::idempotent) advertises, adds key arguments to `tools/list`,
//!   and answers the [status request](crate::wire::STATUS_METHOD).
//! - A tool with a [contract](crate::wire::CONTRACT) in the `_meta` of its definition is taken to be
//!   annotated, and its calls pass. A handler that lists the tools of another server removes their
//!   contracts, or that server alone protects their calls.
//! - Annotated tools are taken to use the layer's [`Idempotency`]: with its policy their contracts in
//!   `tools/list` are completed, and the status request is answered.
//!
//! # Example
//!
//! ```
//! use mcp_idempotent_tower::{Idempotency, MemoryStore, OnError, ServerExt, layer::{IdempotencyLayer, Rule}};
//! # use rmcp::{handler::server::wrapper::Parameters, schemars, tool, tool_router};
//! # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Text { text: String }
//! # struct Mailer;
//! # #[tool_router(server_handler)] impl Mailer {
//! #     /// Sends.
//! #     #[tool] async fn send(&self, Parameters(t): Parameters<Text>) -> String { t.text }
//! # }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotency = Idempotency::for_stdio("mailer", MemoryStore::new())?;
//! let server = Mailer.idempotent(IdempotencyLayer::new(idempotency.clone(), Rule::lease(OnError::InDoubt))?);
//! # drop(server);
//!
//! // What an error means must be said: it decides whether a retry may run.
//! let refused = IdempotencyLayer::new(idempotency, Rule::lease(OnError::Default));
//! assert!(refused.is_err());
//! # Ok(())
//! # }
//! ```

mod delegate;
mod front;
mod rule;
mod server;
mod service;
mod stack;
mod status;

use std::{collections::HashMap, fmt, sync::Arc};

use mcp_idempotent_core::{KeyRequirement, Store};
use rmcp::model::Tool;

use self::rule::Compiled;
use crate::{BuildError, Idempotency, wire};

pub use self::{
    rule::Rule,
    server::{LayeredServer, ServerExt},
    service::IdempotencyService,
    stack::{ErrorOrigin, HandlerService, IntoErrorData, ToolService},
};

/// A [`tower::Layer`] that runs each tool call once. See the [module](self).
pub struct IdempotencyLayer<S> {
    pub(super) shared: Arc<Shared<S>>,
}

pub(super) struct Shared<S> {
    pub(super) idempotency: Idempotency<S>,
    named: HashMap<String, Compiled<S>>,
    matching: Vec<(Box<Predicate>, Compiled<S>)>,
    default: Compiled<S>,
}

type Predicate = dyn Fn(&Tool) -> bool + Send + Sync;

impl<S: Store> IdempotencyLayer<S> {
    /// One rule for every tool.
    ///
    /// # Errors
    ///
    /// The rule, over the server's policy, cannot hold, for one of the reasons that
    /// [`Policy::check`](crate::Policy::check) lists; or it is in transaction mode and says something
    /// of leases.
    pub fn new(idempotency: Idempotency<S>, default: Rule<S>) -> Result<Self, BuildError> {
        Self::builder(idempotency, default).build()
    }

    /// Starts building a layer; `default` is for the tools that no other rule is for.
    pub fn builder(idempotency: Idempotency<S>, default: Rule<S>) -> IdempotencyLayerBuilder<S> {
        IdempotencyLayerBuilder {
            idempotency,
            default,
            named: Vec::new(),
            matching: Vec::new(),
        }
    }
}

impl<S> IdempotencyLayer<S> {
    /// The engine and rules of this server.
    #[must_use]
    pub fn idempotency(&self) -> &Idempotency<S> {
        &self.shared.idempotency
    }
}

impl<S> Shared<S> {
    fn rule(&self, name: &str, tool: Option<&Tool>) -> &Compiled<S> {
        if let Some(rule) = self.named.get(name) {
            return rule;
        }
        let matching = tool.and_then(|tool| {
            self.matching
                .iter()
                .find_map(|(predicate, rule)| predicate(tool).then_some(rule))
        });
        matching.unwrap_or(&self.default)
    }
}

/// Whether a tool's calls are deduplicated by something below already.
pub(super) fn has_contract(tool: Option<&Tool>) -> bool {
    tool.and_then(|tool| tool.meta.as_ref())
        .is_some_and(|meta| meta.contains_key(wire::CONTRACT))
}

impl<S, T> tower::Layer<T> for IdempotencyLayer<S> {
    type Service = IdempotencyService<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        IdempotencyService::new(inner, self.clone())
    }
}

impl<S> Clone for IdempotencyLayer<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S> fmt::Debug for IdempotencyLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("idempotency", &self.shared.idempotency)
            .field("tools", &self.shared.named.keys())
            .finish_non_exhaustive()
    }
}

/// Builds an [`IdempotencyLayer`].
pub struct IdempotencyLayerBuilder<S> {
    idempotency: Idempotency<S>,
    default: Rule<S>,
    named: Vec<(String, Rule<S>)>,
    matching: Vec<(Box<Predicate>, Rule<S>)>,
}

impl<S: Store> IdempotencyLayerBuilder<S> {
    /// The rule of one tool.
    #[must_use]
    pub fn with_tool(mut self, name: impl Into<String>, rule: Rule<S>) -> Self {
        self.named.push((name.into(), rule));
        self
    }

    /// The rule of every tool that no name is for and for whose definition the predicate holds.
    /// Earlier predicates come first.
    #[must_use]
    pub fn with_tools(
        mut self,
        predicate: impl Fn(&Tool) -> bool + Send + Sync + 'static,
        rule: Rule<S>,
    ) -> Self {
        self.matching.push((Box::new(predicate), rule));
        self
    }

    /// Checks the rules and builds.
    ///
    /// # Errors
    ///
    /// A tool has two rules, or a rule cannot hold: see [`IdempotencyLayer::new`]. The message says
    /// which.
    pub fn build(self) -> Result<IdempotencyLayer<S>, BuildError> {
        let base = &*self.idempotency.settings().policy;
        let limit = self.idempotency.store().transaction_limit();
        let mut named = HashMap::new();
        for (name, rule) in self.named {
            let rule = rule.compile(&format!("the rule of the tool `{name}`"), base, limit)?;
            if named.contains_key(&name) {
                return Err(BuildError::new(format!("`{name}` has two rules")));
            }
            named.insert(name, rule);
        }
        let mut matching = Vec::with_capacity(self.matching.len());
        for (predicate, rule) in self.matching {
            let whose = format!("rule {} of those with a predicate", matching.len() + 1);
            matching.push((predicate, rule.compile(&whose, base, limit)?));
        }
        let mut default = self.default.compile("the default rule", base, limit)?;
        default.by_default = true;
        if default.policy.key == KeyRequirement::Derived {
            tracing::info!(
                "equal calls of tools without a rule of their own are taken for retries within the window"
            );
        }
        Ok(IdempotencyLayer {
            shared: Arc::new(Shared {
                idempotency: self.idempotency,
                named,
                matching,
                default,
            }),
        })
    }
}

impl<S> fmt::Debug for IdempotencyLayerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayerBuilder")
            .field("default", &self.default)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}
