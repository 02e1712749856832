//! What a layer does with a tool.

mod compiled;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{
    KeyRequirement, OnDoubt, OnError, OnErrorResult, OnExpired, PolicyOverride, RotatedKeys, Store,
    TransactionStore, Wait,
};
use rmcp::model::CallToolResult;

pub(super) use self::compiled::{Compiled, is_read_only, top_level_name};
use crate::call::{
    Classify, ToolCall,
    reply::Reply,
    result::Handled,
    rules::Rules,
    run,
    verify::{InDoubt, VerifyFn, Verifying},
};

/// What a layer does with a tool: its mode, and what differs from the policy of the
/// [`Idempotency`](crate::Idempotency).
///
/// The layer does not derive keys unless [`Rule::with_key`] says so: the authors of these tools did
/// not have retries in mind, so two calls with equal arguments may be two intents. Calls with an
/// explicit key are protected.
pub struct Rule<S> {
    kind: Kind<S>,
    policy: PolicyOverride,
    verify: Option<VerifyFn<'static>>,
    classify: Option<Arc<Classify>>,
}

/// Passes one call to the services below the layer.
pub(super) type Handler = Box<dyn FnOnce(ToolCall) -> BoxFuture<'static, Handled> + Send>;

pub(super) type RunInTransaction<S> =
    fn(Rules<'static, S>, Box<ToolCall>, Handler) -> BoxFuture<'static, Reply<Handled>>;

fn in_transaction<S: TransactionStore>(
    rules: Rules<'static, S>,
    call: Box<ToolCall>,
    handler: Handler,
) -> BoxFuture<'static, Reply<Handled>> {
    Box::pin(run::in_transaction(rules, call, |call, lent| {
        call.executed().lent(lent, handler)
    }))
}

pub(super) enum Kind<S> {
    Untouched,
    Lease,
    /// With the function that runs it, which exists only for stores with transactions.
    Transaction(RunInTransaction<S>),
}

impl<S> Clone for Kind<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Kind<S> {}

impl<S> Kind<S> {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Untouched => "untouched",
            Self::Lease => "lease",
            Self::Transaction(_) => "transaction",
        }
    }
}

impl<S: TransactionStore> Rule<S> {
    /// Transaction mode: the handler takes [`Tx`](crate::Tx), and its writes through it commit
    /// together with the record or not at all. If a handler succeeds without taking it, the caller
    /// gets an error.
    #[must_use]
    pub const fn transaction() -> Self {
        Self::of(Kind::Transaction(in_transaction::<S>))
    }
}

impl<S: Store> Rule<S> {
    /// Lease mode: the effect is outside the store. The handler runs at most once; if the server
    /// crashes halfway, the outcome is unknown. `on_error` says what an error of the handler means:
    /// [`OnError::InDoubt`] (it does not prove that nothing happened) or [`OnError::Release`] (it
    /// does, or a repeat is safe).
    #[must_use]
    pub const fn lease(on_error: OnError) -> Self {
        let mut rule = Self::of(Kind::Lease);
        rule.policy.on_error = Some(on_error);
        rule
    }

    /// No deduplication, whatever the client sends.
    #[must_use]
    pub const fn untouched() -> Self {
        Self::of(Kind::Untouched)
    }
}

impl<S> Rule<S> {
    const fn of(kind: Kind<S>) -> Self {
        Self {
            kind,
            policy: PolicyOverride::NONE,
            verify: None,
            classify: None,
        }
    }

    /// Whether a call needs a key. By default [`KeyRequirement::Explicit`], or
    /// [`KeyRequirement::Required`] if the server's policy says so.
    #[must_use]
    pub const fn with_key(mut self, key: KeyRequirement) -> Self {
        self.policy.key = Some(key);
        self
    }

    /// An argument that may carry the key: a top-level name, or a JSON pointer. A top-level name
    /// that the tool's input schema lacks is added to the tool's definition, with a description for
    /// the model, and removed before the handler sees the arguments.
    #[must_use]
    pub fn with_key_argument(mut self, argument: &str) -> Self {
        self.policy.key_argument = Some(pointer(argument).into());
        self
    }

    /// An argument that takes no part in identity: a top-level name, or a JSON pointer.
    #[must_use]
    pub fn with_ignored(mut self, argument: &str) -> Self {
        let ignored = self.policy.ignored.get_or_insert_default();
        ignored.to_mut().push(pointer(argument).into());
        self
    }

    /// The earlier name of a tool that was renamed: its calls are still recorded and recognised
    /// under that name. Keep it as long as the tool exists.
    #[must_use]
    pub fn with_also_known_as(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.policy.also_known_as = Some(name.into());
        self
    }

    /// How long a result under an explicit key is kept.
    #[must_use]
    pub const fn with_retention(mut self, retention: Duration) -> Self {
        self.policy.retention = Some(retention);
        self
    }

    /// How long a result under a derived key is kept.
    #[must_use]
    pub const fn with_window(mut self, window: Duration) -> Self {
        self.policy.window = Some(window);
        self
    }

    /// What a duplicate of a running call does.
    #[must_use]
    pub const fn with_wait(mut self, wait: Wait) -> Self {
        self.policy.wait = Some(wait);
        self
    }

    /// What happens to a call if an equal one was made under another explicit key: a client that
    /// makes a new key for each attempt would run every retry.
    #[must_use]
    pub const fn with_rotated_keys(mut self, rotated_keys: RotatedKeys) -> Self {
        self.policy.rotated_keys = Some(rotated_keys);
        self
    }

    /// How long a completed call counts for [`with_rotated_keys`](Self::with_rotated_keys).
    /// Default: 10 minutes.
    #[must_use]
    pub const fn with_rotated_keys_window(mut self, window: Duration) -> Self {
        self.policy.rotated_keys_window = Some(window);
        self
    }

    /// Lease mode: how long a claim is honoured without a heartbeat. On SQLite it is more than
    /// three times the store's limit on transactions: more than 90 s, unless
    /// `SqliteStoreBuilder::with_transaction_limit` shortens that.
    #[must_use]
    pub const fn with_lease(mut self, lease: Duration) -> Self {
        self.policy.lease = Some(lease);
        self
    }

    /// Lease mode: how often a running attempt renews its lease; by default after a third of the
    /// lease, at most after half of it.
    #[must_use]
    pub const fn with_heartbeat(mut self, heartbeat: Duration) -> Self {
        self.policy.heartbeat = Some(heartbeat);
        self
    }

    /// Lease mode: a call in doubt runs again. A repeat must be safe, for instance because the
    /// outside call carries the [downstream key](crate::Attempt::downstream_key).
    #[must_use]
    pub const fn with_rerun_in_doubt(mut self) -> Self {
        self.policy.on_doubt = Some(OnDoubt::Rerun);
        self
    }

    /// Lease mode: asks this function about a call in doubt. Return a [`Verdict`](crate::Verdict)
    /// from a boxed future, and clone what it needs for each call:
    ///
    /// ```
    /// # use mcp_idempotent_tower::{MemoryStore, OnError, Verdict, layer::Rule};
    /// # #[derive(Clone)] struct Bank;
    /// # impl Bank { async fn find(&self, _: &str) -> Option<String> { None } }
    /// # let bank = Bank;
    /// let rule: Rule<MemoryStore> = Rule::lease(OnError::InDoubt).with_verify(move |call| {
    ///     let bank = bank.clone();
    ///     Box::pin(async move {
    ///         match bank.find(call.downstream_key("pay").as_str()).await {
    ///             Some(receipt) => Verdict::committed(receipt),
    ///             None => Verdict::NotCommitted,
    ///         }
    ///     })
    /// });
    /// ```
    #[must_use]
    pub fn with_verify(
        mut self,
        verify: impl for<'a> Fn(InDoubt<'a>) -> Verifying<'a> + Send + Sync + 'static,
    ) -> Self {
        self.policy.on_doubt = Some(OnDoubt::Verify);
        self.verify = Some(Arc::new(verify));
        self
    }

    /// Lease mode: how long a record in doubt is kept.
    #[must_use]
    pub const fn with_in_doubt_retention(mut self, retention: Duration) -> Self {
        self.policy.in_doubt_retention = Some(retention);
        self
    }

    /// What an error of the handler means for the record.
    #[must_use]
    pub const fn with_on_error(mut self, on_error: OnError) -> Self {
        self.policy.on_error = Some(on_error);
        self
    }

    /// Lease mode: what a result with `isError` means for the record. It takes precedence over
    /// [`with_on_error`](Self::with_on_error), which decides if this is not set.
    #[must_use]
    pub const fn with_on_error_result(mut self, on_error_result: OnErrorResult) -> Self {
        self.policy.on_error_result = Some(on_error_result);
        self
    }

    /// Lease mode: asks this function what a result with `isError` means for the record. It takes
    /// precedence over [`with_on_error_result`](Self::with_on_error_result).
    ///
    /// ```
    /// # use mcp_idempotent_tower::{MemoryStore, OnError, OnErrorResult, layer::Rule};
    /// let rule: Rule<MemoryStore> = Rule::lease(OnError::InDoubt).with_error_results_classified(|result| {
    ///     match result.structured_content.as_ref().and_then(|content| content["declined"].as_bool()) {
    ///         Some(true) => OnErrorResult::Record, // an answer of the bank
    ///         _ => OnErrorResult::InDoubt,
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn with_error_results_classified(
        mut self,
        classify: impl Fn(&CallToolResult) -> OnErrorResult + Send + Sync + 'static,
    ) -> Self {
        self.classify = Some(Arc::new(classify));
        self
    }

    /// Lease mode, [`Rule::with_verify`]: how long the function may take. After that its answer
    /// counts as [`Verdict::Unknown`](crate::Verdict::Unknown).
    #[must_use]
    pub const fn with_verify_timeout(mut self, timeout: Duration) -> Self {
        self.policy.verify_timeout = Some(timeout);
        self
    }

    /// Transaction mode: how long the handler may run. Then its cancellation token fires. If it
    /// goes on for as long again (at most 5 s), it is dropped and its writes are rolled back. By
    /// default only the store's limit counts.
    #[must_use]
    pub const fn with_transaction_timeout(mut self, timeout: Duration) -> Self {
        self.policy.transaction_timeout = Some(timeout);
        self
    }

    /// What happens to a call whose result is past its retention.
    #[must_use]
    pub const fn with_on_expired(mut self, on_expired: OnExpired) -> Self {
        self.policy.on_expired = Some(on_expired);
        self
    }

    /// Under [`OnExpired::Refuse`]: how long a call is refused after its result's retention has
    /// passed.
    #[must_use]
    pub const fn with_tombstone(mut self, tombstone: Duration) -> Self {
        self.policy.tombstone = Some(tombstone);
        self
    }

    /// The largest result that is stored, in encoded bytes. The first caller still gets a larger
    /// result; a retry is told that the call is completed and its result was not kept.
    #[must_use]
    pub const fn with_max_result_bytes(mut self, bytes: usize) -> Self {
        self.policy.max_result_bytes = Some(bytes);
        self
    }

    /// Lease mode: whether to run the handler **without any protection** if the store cannot be
    /// reached, instead of refusing the call.
    #[must_use]
    pub const fn with_run_unprotected_when_store_is_unavailable(mut self, yes: bool) -> Self {
        self.policy.run_unprotected_when_store_is_unavailable = Some(yes);
        self
    }
}

impl<S> fmt::Debug for Rule<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("mode", &self.kind.name())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// A JSON pointer from a pointer or a top-level name.
fn pointer(argument: &str) -> String {
    if argument.starts_with('/') {
        return argument.to_owned();
    }
    format!("/{}", argument.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests;
