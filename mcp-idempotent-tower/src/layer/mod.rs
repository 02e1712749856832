//! A whole server behind one tower layer, without touching its handlers.
//!
//! Compared with the attribute, the layer adds three things. It protects tools that have no
//! annotation, by [`Rule`]s. It is a tower service, so other layers can be put above and below it.
//! And it completes what the server says of itself: the capability, the tools' contracts and the
//! status request, all three in `front`.
//!
//! # What happens to a call
//!
//! "Passes" means that the call goes to the service below without any deduplication by this layer.
//!
//! 1. A tool that is annotated with [`#[idempotent]`](macro@crate::idempotent) is recognised by the
//!    contract in its definition's `_meta`. Its calls pass: the annotation deduplicates them. A
//!    call that a layer above deduplicates passes too.
//! 2. A tool's [`Rule`] is the one that names it, else the first whose predicate holds, else the
//!    layer's default. Under [`Rule::untouched`] its calls pass, and neither the scope resolver nor
//!    an `authorize` hook is asked. Under any other rule a call is refused if one of them denies
//!    its caller, with or without a key.
//! 3. A call with an explicit key is protected. A call without one passes, unless the rule asks for
//!    [derived or required keys](Rule::with_key).
//! 4. A tool whose annotations say `readOnlyHint: true` is protected by an explicit key alone,
//!    whatever its rule says about keys. Its calls without a key pass; under a default rule in
//!    transaction mode no transaction is opened for them.
//! 5. The services below the layer are made ready once a call has its claim. So replays and waiting
//!    duplicates hold no permit of a limit below. The layer itself is always ready.
//! 6. The handler's result decides what is recorded. An error of another service below frees the
//!    key if that service was not ready or says that it refused the call before the handler
//!    (`Overloaded`), and if the layer itself saw that the handler was not entered. Any other error
//!    (a timeout that dropped the handler, a load limit below a retry that had already called the
//!    handler, a refusal from a service in the handler's place) leaves a lease in doubt and rolls a
//!    transaction back.
//! 7. To the layer, a malformed call enters the handler, because rmcp parses the arguments inside.
//!    So rmcp's answer is a result with `isError` like any other. Under an explicit key it is
//!    recorded: a retry gets it again, and a corrected call needs a new key. A tool that does not
//!    exist is an error like any other, and the rule's `on_error` decides. No error text and no
//!    code frees a key, because a handler that has acted may answer with the same ones. The
//!    annotation parses the arguments itself, and frees the key if they do not parse.
//! 8. A handler may pass on what another server said in this crate's names (a replay's marker, a
//!    refusal, a mark of [`NotExecuted`](crate::NotExecuted)). It is marked as that server's before
//!    it is recorded or sent ([`UPSTREAM`](crate::wire::UPSTREAM)).
//! 9. Dropping the caller (a timeout above, a client that went away) does not stop the handler, the
//!    recording of its result, or the duplicates that wait for it.
//!
//! # Order
//!
//! Services above the layer see every call; services below see only those that execute.
//!
//! - `Timeout` belongs **above**: there it bounds how long a caller waits, and a retry with the
//!   same key gets the result. Below, it cuts handlers off halfway, and a call in lease mode is in
//!   doubt.
//! - `ConcurrencyLimit`, `RateLimit` and `Buffer` for handlers belong **below**: above, waiting
//!   duplicates hold their permits. Measured with 64 duplicates of a call of 250 ms and a limit of
//!   16: a call with another key takes 0.3 ms with the limit below, and the full 250 ms with it
//!   above.
//! - `LoadShed` directly above a limit below the layer refuses new calls, while replays are still
//!   answered. Above the layer it only reacts to limits between the two.
//!
//! # Caveats
//!
//! - Tool definitions are looked up once for each name, and updated by each `tools/list`. Keep the
//!   `ToolRouter` in a field: otherwise the generated `get_tool` and `call_tool` rebuild it on
//!   every call.
//! - Over HTTP build the server once and clone it in the factory of `StreamableHttpService`:
//!   `ConcurrencyLimitLayer` makes a new semaphore each time a server is wrapped.
//! - The layer in a [`ServiceBuilder`](tower::ServiceBuilder) given to
//!   [`layered`](crate::ServerExt::layered) protects, but only
//!   [`idempotent`](crate::ServerExt::idempotent) advertises, adds key arguments to `tools/list`,
//!   and answers the [status request](crate::wire::STATUS_METHOD).
//! - A tool with a [contract](crate::wire::CONTRACT) in the `_meta` of its definition counts as
//!   annotated, and its calls pass. A handler that lists the tools of another server must remove
//!   their contracts; otherwise only that server protects their calls.
//! - Annotated tools are assumed to use the layer's [`Idempotency`]: its policy completes their
//!   contracts in `tools/list` and answers the status request.
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
//! // What an error means must be set: it decides whether a retry may run.
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

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

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
    /// The rule is not valid together with the server's policy, for one of the reasons that
    /// [`Policy::check`](crate::Policy::check) lists. Or it is in transaction mode and sets
    /// something that only leases have.
    pub fn new(idempotency: Idempotency<S>, default: Rule<S>) -> Result<Self, BuildError> {
        Self::builder(idempotency, default).build()
    }

    /// Starts building a layer; `default` is the rule of the tools that have no other.
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

/// Whether something below already deduplicates a tool's calls.
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

    /// The rule of every tool that has no rule by name and for whose definition the predicate
    /// holds. The first predicate that holds decides.
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
    /// A tool has two rules, two tools are recorded under one name, a rule for several tools has an
    /// earlier name, or a rule is not valid: see [`IdempotencyLayer::new`]. The message says which.
    pub fn build(self) -> Result<IdempotencyLayer<S>, BuildError> {
        let base = &*self.idempotency.settings().policy;
        let limit = self.idempotency.store().transaction_limit();
        let check = |whose: &str, rule: &Compiled<S>| {
            let engine = self.idempotency.engine();
            let checked = engine.check_policy(&rule.policy);
            checked.map_err(|error| BuildError::from(error.of(whose)))
        };
        let mut named = HashMap::new();
        let mut recorded_as = HashSet::new();
        for (name, rule) in self.named {
            let whose = format!("the rule of the tool `{name}`");
            let rule = rule.compile(&whose, base, limit)?;
            check(&whose, &rule)?;
            if named.contains_key(&name) {
                return Err(BuildError::new(format!("`{name}` has two rules")));
            }
            let earlier = rule.policy.also_known_as.as_deref();
            if !recorded_as.insert(earlier.unwrap_or(&name).to_owned()) {
                return Err(BuildError::of_one_name(earlier.unwrap_or(&name)));
            }
            named.insert(name, rule);
        }
        let mut matching = Vec::with_capacity(self.matching.len());
        for (predicate, rule) in self.matching {
            let whose = format!("rule {} of those with a predicate", matching.len() + 1);
            let rule = rule.compile_for_many(&whose, base, limit)?;
            check(&whose, &rule)?;
            matching.push((predicate, rule));
        }
        let mut default = self
            .default
            .compile_for_many("the default rule", base, limit)?;
        check("the default rule", &default)?;
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
