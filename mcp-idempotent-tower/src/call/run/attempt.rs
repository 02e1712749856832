//! The running attempt, as a handler in lease mode sees it.

use std::{fmt, future::Future, sync::Arc};

use mcp_idempotent_core::{
    Action, BeginError, CommitOutcome, CompletionStatement, DownstreamKey, ErrorKind,
    HandlerResult as _, LeaseHandle, Lent, NotCurrent, Refusal, ResultKind, TransactionStore,
};
use rmcp::{
    ErrorData,
    handler::server::{
        common::{AsRequestContext, FromContextPart},
        tool::IntoCallToolResult,
    },
    model::Extensions,
};
use tokio_util::sync::CancellationToken;

use super::{
    handler::until_told,
    tx::{self, Tx},
    unprotected::Unleased,
};
use crate::call::{provenance, refusal, result::Handled, schema::SchemaHash};

tokio::task_local! {
    /// The attempt of the call that this task runs.
    static CURRENT: Attempt;
}

/// The running attempt at a tool call in lease mode. A handler runs in lease mode under
/// [`#[idempotent]`](macro@crate::idempotent) if it takes no `&mut` transaction and the attribute has no option
/// `transaction`, or under a [`Rule::lease`](crate::layer::Rule::lease) of the layer. It takes its attempt as a
/// parameter. A tool without extractors (an `AsyncTool`) calls [`Attempt::current`].
///
/// The lease is renewed while the handler runs. If it is lost all the same (the database was unreachable for
/// longer than the lease, the process was paused, an operator resolved the record), the call's
/// `CancellationToken` fires and the handler's result is not recorded.
///
/// ```
/// use mcp_idempotent_tower::{Attempt, Idempotency, MemoryStore, NotExecuted, idempotent};
/// use rmcp::{ErrorData, handler::server::wrapper::Parameters, schemars, tool, tool_router};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Refund { charge: String }
///
/// #[derive(Clone)]
/// struct Shop { idempotency: Idempotency<MemoryStore> }
///
/// #[tool_router(server_handler)]
/// impl Shop {
///     /// Refunds a charge.
///     #[idempotent(on_error = in_doubt, on_doubt = rerun)]
///     #[tool]
///     async fn refund(&self, attempt: Attempt, Parameters(refund): Parameters<Refund>) -> Result<String, ErrorData> {
///         let key = attempt.downstream_key("refund");
///         // Nothing has been sent yet, so an error here frees the key.
///         attempt.ensure_current().await.map_err(NotExecuted::mark)?;
///         post_refund(&refund.charge, key.as_str()).await
///     }
/// }
/// # async fn post_refund(charge: &str, key: &str) -> Result<String, ErrorData> { Ok(format!("{charge} {key}")) }
/// ```
#[derive(Clone)]
pub struct Attempt {
    kind: Kind,
    /// The tool's output schema, which is stored with its result.
    schema: Option<SchemaHash>,
}

#[derive(Clone)]
enum Kind {
    Leased(LeaseHandle),
    /// In an unprotected call.
    Unleased(Arc<Unleased>),
}

impl Attempt {
    pub(in crate::call) const fn leased(handle: LeaseHandle) -> Self {
        Self {
            kind: Kind::Leased(handle),
            schema: None,
        }
    }

    pub(in crate::call) const fn unleased(unleased: Arc<Unleased>) -> Self {
        Self {
            kind: Kind::Unleased(unleased),
            schema: None,
        }
    }

    /// The attempt of a tool with this output schema.
    pub(crate) fn under_schema(self, schema: Option<SchemaHash>) -> Self {
        Self { schema, ..self }
    }

    /// The attempt of the call that this task runs, for tools without extractors.
    ///
    /// # Errors
    ///
    /// The tool does not run in lease mode. Nothing was changed.
    pub fn current() -> Result<Self, ErrorData> {
        CURRENT.try_with(Self::clone).map_err(|_| none_running())
    }

    /// A key to send to another system, for instance in the header `Idempotency-Key` of a payment API. It
    /// is the same for every attempt at this call, and different for each `step`. The name of a step is up
    /// to you, but must not change while calls are in progress or in doubt.
    #[must_use]
    pub fn downstream_key(&self, step: &str) -> DownstreamKey {
        match &self.kind {
            Kind::Leased(handle) => handle.downstream_key(step),
            Kind::Unleased(unleased) => unleased.downstream_key(step),
        }
    }

    /// Asks the store whether this attempt still has its lease, and renews it. Call it right before the
    /// outside call. This narrows the gap but does not close it: the lease may still be lost before the
    /// request reaches the other side, and only the downstream key helps there.
    ///
    /// Call it before [`begin`](Self::begin), not after: it needs a second connection beside the
    /// transaction's, and a transaction above READ COMMITTED cannot complete a lease that was renewed
    /// after its first statement.
    ///
    /// # Errors
    ///
    /// The lease is lost, or the store could not be queried. Do not make the outside call. If the handler
    /// has made none so far, mark the error with [`NotExecuted`](crate::NotExecuted).
    pub async fn ensure_current(&self) -> Result<(), ErrorData> {
        let Kind::Leased(handle) = &self.kind else {
            return Ok(());
        };
        handle.ensure_current().await.map_err(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a handler could not confirm its lease"
            );
            refused(&match error {
                NotCurrent::Completed => Refusal::new(
                    ErrorKind::OutcomeUnknown,
                    CommitOutcome::Committed,
                    Action::RetrySameKey,
                    "The call has committed its result, so it no longer has its lease. Send the same call \
                     with the same key again to get that result.",
                ),
                NotCurrent::Fenced => Refusal::new(
                    ErrorKind::OutcomeUnknown,
                    CommitOutcome::Unknown,
                    Action::RetrySameKey,
                    "The call lost its lease while it ran, so it stopped. Another attempt or an \
                     operator decides what becomes of it. Send the same call with the same key \
                     again to find out.",
                ),
                _ => Refusal::new(
                    ErrorKind::StoreUnavailable,
                    CommitOutcome::Unknown,
                    Action::RetrySameKey,
                    "The store of idempotency records could not be reached while the call ran, so \
                     it stopped. Send the same call with the same key again to find out.",
                ),
            })
        })
    }

    /// Opens the attempt's transaction, for a tool that acts outside first and writes afterwards. If the
    /// handler returns a result while the attempt still has its lease, its writes commit together with
    /// that result; otherwise they are rolled back. Each attempt has one transaction. Begin it after the
    /// outside call, so that no connection is held during that call and the store's limit on transactions
    /// does not stop the handler. Write through `&mut *tx`.
    ///
    /// # Errors
    ///
    /// The lease is lost or belongs to another store, the transaction has been begun already, or the store
    /// failed. Nothing was written; the outside call may have been made.
    pub async fn begin<S: TransactionStore>(&self) -> Result<Tx<S>, ErrorData> {
        let begun = match &self.kind {
            Kind::Leased(handle) => handle.begin().await,
            Kind::Unleased(unleased) => unleased.begin().await,
        };
        begun.map(Tx::of).map_err(|error| {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "a handler could not get a transaction under its lease"
            );
            let kind = match error {
                BeginError::Store(_) => ErrorKind::StoreUnavailable,
                BeginError::Ended => ErrorKind::OutcomeUnknown,
                _ => ErrorKind::Misconfigured,
            };
            refused(&Refusal::new(
                kind,
                CommitOutcome::Unknown,
                Action::RetrySameKey,
                format!("The call could not open its transaction: {error}."),
            ))
        })
    }

    /// The statement that completes this attempt, for a tool that writes through another driver (tokio-postgres,
    /// diesel-async, another version of sqlx). Run it in the transaction that has the effect, on the store's
    /// database, as the last statement before the commit. Effect, result and record then commit together or
    /// not at all. If the attempt has lost its lease, the statement fails, and nothing can be committed.
    ///
    /// ```no_run
    /// # use mcp_idempotent_tower::Attempt;
    /// # use rmcp::ErrorData;
    /// # async fn charge(attempt: Attempt, mut client: sqlx::PgConnection) -> Result<String, Box<dyn std::error::Error>> {
    /// # use sqlx::Connection as _;
    /// let mut tx = client.begin().await?;
    /// sqlx::query("INSERT INTO charges DEFAULT VALUES").execute(&mut *tx).await?;
    /// let charged = "charged".to_owned();
    /// let completion = attempt.completion(charged.clone())?;
    /// sqlx::query(sqlx::AssertSqlSafe(completion.sql().to_owned()))
    ///     .bind(completion.attempt())
    ///     .bind(completion.result())
    ///     .execute(&mut *tx)
    ///     .await?;
    /// tx.commit().await?;
    /// Ok(charged)
    /// # }
    /// ```
    ///
    /// `result` must be what the tool returns afterwards, including an `isError` of its own. From now on the
    /// committed record decides, not what the tool returns:
    ///
    /// - The record was committed: every caller gets its result, even if the tool then returns another one or
    ///   fails (its connection broke during the commit, for instance).
    /// - It was not, and the tool returns an error: `on_error` decides, as always.
    /// - It was not, and the tool returns a success: the call is in doubt, because the tool may have committed
    ///   its effect without the statement.
    ///
    /// A tool may ask again, for another try at its transaction; only one can commit. In an unprotected call
    /// the statement changes nothing.
    ///
    /// Since a transaction of an attempt that was fenced cannot commit, a tool without any other effect is safe
    /// under `on_error = release, on_doubt = rerun`.
    ///
    /// # Errors
    ///
    /// The store is not a [`PostgresStore`](crate::PostgresStore), the lease is lost, [`begin`](Self::begin) was
    /// called before, or `result` is an error or not final. Nothing was changed.
    pub fn completion(
        &self,
        result: impl IntoCallToolResult,
    ) -> Result<CompletionStatement, ErrorData> {
        let result = Handled::by_author(Ok(result.into_call_tool_result()?));
        if !(result.kind.is_success() || result.kind == ResultKind::ErrorResult) {
            return Err(no_completion(&"its result is not final"));
        }
        let response = result
            .under_schema(self.schema)
            .encode()
            .map_err(|error| no_completion(&error))?;
        match &self.kind {
            Kind::Leased(handle) => handle.completion(&response),
            Kind::Unleased(unleased) => unleased.completion(),
        }
        .map_err(|error| no_completion(&error))
    }

    /// Completes when the lease is lost while the attempt runs, and never otherwise.
    pub async fn lost(&self) {
        match &self.kind {
            Kind::Leased(handle) => handle.lost().await,
            Kind::Unleased(_) => std::future::pending().await,
        }
    }

    /// Whether the lease is known to be lost, without asking the store
    /// ([`ensure_current`](Self::ensure_current) does).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(&self.kind, Kind::Leased(handle) if handle.is_lost())
    }

    /// Which attempt this is; the first is 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        match &self.kind {
            Kind::Leased(handle) => handle.number(),
            Kind::Unleased(_) => 1,
        }
    }

    /// The fencing token. It grows with each attempt, and a store never uses one twice, so a system that
    /// compares tokens can refuse a late attempt. `None` in an unprotected call.
    #[must_use]
    pub fn token(&self) -> Option<i64> {
        match &self.kind {
            Kind::Leased(handle) => Some(handle.token()),
            Kind::Unleased(_) => None,
        }
    }

    /// Resolves when the handler should stop: its lease is lost, or its transaction will not commit.
    async fn told_to_stop(&self) {
        match &self.kind {
            Kind::Leased(handle) => handle.told_to_stop().await,
            Kind::Unleased(unleased) => unleased.told_to_stop().await,
        }
    }

    /// Runs the handler as this attempt, and fires its cancellation token when it should stop.
    pub(crate) async fn during<F: Future>(self, ct: CancellationToken, handler: F) -> F::Output {
        let attempt = self.clone();
        let handler = CURRENT.scope(self, handler);
        until_told(attempt.told_to_stop(), ct, handler).await
    }
}

/// The transaction that our layer has for the call with these extensions.
///
/// # Errors
///
/// The layer has none of this store.
pub(crate) async fn transaction_of_layer<S: TransactionStore>(
    extensions: &Extensions,
) -> Result<Tx<S>, ErrorData> {
    match (extensions.get::<Lent<S>>(), extensions.get::<Attempt>()) {
        (Some(lent), _) => tx::borrow(lent),
        (None, Some(attempt)) => attempt.begin().await,
        (None, None) => Err(tx::none_open()),
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("token", &self.token())
            .field("number", &self.number())
            .field("lost", &self.is_lost())
            .finish()
    }
}

impl<C: AsRequestContext> FromContextPart<C> for Attempt {
    fn from_context_part(context: &mut C) -> Result<Self, ErrorData> {
        let extensions = &context.as_request_context().extensions;
        extensions.get::<Self>().cloned().ok_or_else(none_running)
    }
}

fn no_completion(why: &dyn fmt::Display) -> ErrorData {
    tracing::error!(%why, "a handler could not get its completion");
    refused(&Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::Unknown,
        Action::RetrySameKey,
        format!("The call could not be completed in the tool's own transaction: {why}."),
    ))
}

fn none_running() -> ErrorData {
    let message = "This tool takes its attempt (`Attempt`), but it does not run in lease mode. Its \
                   author must put `#[idempotent(on_error = …)]` on it, without the option `transaction` \
                   and without a `&mut` transaction, or wrap the server in a layer whose rule for it is `Rule::lease(…)`.";
    tracing::error!(message, "a handler could not get its attempt");
    refused(&Refusal::new(
        ErrorKind::Misconfigured,
        CommitOutcome::NotCommitted,
        Action::AskOperator,
        message,
    ))
}

/// One of our refusals, which a handler may return.
fn refused(refusal: &Refusal) -> ErrorData {
    provenance::sealed(refusal::error_data(refusal))
}
