//! What the expansion of `#[idempotent]` calls. Not part of the public interface; it changes without
//! notice.

use std::{future::Future, pin::Pin, sync::Arc};

use mcp_idempotent_core::{Lent, Refusal, Store, TransactionStore};

use super::parts::handled;
use crate::{
    Idempotency,
    call::{
        Classify, Incoming as _, ToolCall, ToolResult, attempt, identity,
        key::{KeyMaker, Places},
        provenance::{self, Inside},
        reader::Reader,
        refusal,
        result::{self, answered},
        rules::Rules,
        run,
        tool_call::UnderRecord,
        tx,
        verify::VerifyFn,
    },
};

pub use super::{
    options::{Mode, ToolOptions},
    parts::{Call, NotCalled, Outcome, Parts},
    stand_ins::{
        CallToolResponse, ErrorData, Json, Parameters, empty_input_schema, input_schema, meta,
        output_schema, with_key_argument,
    },
};
pub use crate::call::verify::{InDoubt, IntoVerdict, Verifying};
pub use mcp_idempotent_core::{
    KeyRequirement, OnDoubt, OnError, OnErrorResult, OnExpired, PolicyOverride, RotatedKeys, Wait,
};

/// A server that can be cloned into a task that outlives its caller.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot have `#[idempotent]` tools: it is not `Clone + Send + Sync + 'static`",
    label = "this server cannot be moved into a task",
    note = "a call continues on a clone of the server when its caller disconnects; write `#[derive(Clone)]` above `{Self}`, and put what is not `Clone`, `Send` and `Sync` into an `Arc` or a lock; if it is generic, its parameters need these bounds too: `impl<T: Clone + Send + Sync + 'static>`"
)]
pub trait Server: Send + Sync + 'static {
    /// A server that shares this one's state.
    fn detach(&self) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T: Clone + Send + Sync + 'static> Server for T {
    fn detach(&self) -> Self {
        self.clone()
    }
}

/// A store's connection, as the author's function takes it.
#[diagnostic::on_unimplemented(
    message = "expected `&mut {Self}`, found `&mut {T}`",
    label = "the store lends another connection",
    note = "a tool in transaction mode takes the connection of its server's store: `&mut PgConnection` with `PostgresStore`, `&mut SqliteConnection` with `SqliteStore`"
)]
pub trait Lends<T: ?Sized> {
    /// The connection.
    fn lend(&mut self) -> &mut T;
}

#[diagnostic::do_not_recommend]
impl<T: ?Sized> Lends<T> for T {
    fn lend(&mut self) -> &mut T {
        self
    }
}

/// The future of the author's function.
pub type Running<'c> = Pin<Box<dyn Future<Output = Result<Outcome, NotCalled>> + Send + 'c>>;

/// The future of an answer. Boxed, so that a tool's own future stays small.
pub type Answering<'a> =
    Pin<Box<dyn Future<Output = Result<CallToolResponse, ErrorData>> + Send + 'a>>;

/// Answers a call of a server of type `S`. Whatever panics in `run`, the client gets an answer.
pub fn answer<'a, S, F>(
    Call(mut call): Call,
    run: impl FnOnce(Call) -> F + Send + 'a,
) -> Answering<'a>
where
    S: 'static,
    F: Future<Output = Result<CallToolResponse, ErrorData>> + Send + 'a,
{
    // To a handler, other servers in this process are upstreams: their answers must not be sealed, so
    // `Inside` is taken away.
    let inside = call.context.extensions.remove::<Inside>();
    Box::pin(async move {
        let answer = answered(run(Call(call)), refusal::failed).await;
        if inside.is_some_and(Inside::answers::<S>) {
            return provenance::seal(answer);
        }
        answer
    })
}

/// Runs a tool that takes the transaction.
///
/// # Errors
///
/// The tool's own error, or a refusal.
pub async fn run_in_transaction<S: TransactionStore, T: Server>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    server: &T,
    call: Call,
    handler: for<'c> fn(T, Call, &'c mut S::Connection) -> Running<'c>,
) -> Result<CallToolResponse, ErrorData> {
    let (reader, rules, call) = match deduplicated(idempotency, options, None, call) {
        Ok(Deduplicated::Here(reader, rules, call)) => (reader, rules, call),
        Ok(Deduplicated::ByLayer(call)) => {
            let mut transaction =
                attempt::transaction_of_layer::<S>(&call.context.extensions).await?;
            let ran = handler(server.detach(), Call(*call), &mut transaction).await;
            return handled(ran).with_not_executed();
        }
        Err(refused) => return *refused,
    };
    let schema = reader.schema;
    let reply = run::in_transaction(rules, call, |call, lent| {
        let server = server.detach();
        // Nobody else can have borrowed it.
        let Ok(mut transaction) = lent.borrow() else {
            unreachable!("the transaction of a call that has just begun is there")
        };
        // A `CallPool` that the handler uses as well then says that the transaction is taken.
        Box::pin(lent.during(async move {
            handled(handler(server, Call(call), &mut transaction).await).under_schema(schema)
        }))
    });
    result::answer(idempotency, &reader, reply.await)
}

/// Runs a tool that writes through a `CallPool`, or takes the transaction as a `Tx`.
///
/// # Errors
///
/// The tool's own error, or a refusal.
pub async fn run_in_shared_transaction<S: TransactionStore, T: Server>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    server: &T,
    call: Call,
    handler: fn(T, Call) -> Running<'static>,
) -> Result<CallToolResponse, ErrorData> {
    let (reader, rules, call) = match deduplicated(idempotency, options, None, call) {
        Ok(Deduplicated::Here(reader, rules, call)) => (reader, rules, call),
        Ok(Deduplicated::ByLayer(_)) if Lent::<S>::current().is_none() => {
            return Err(tx::none_open());
        }
        Ok(Deduplicated::ByLayer(call)) => {
            return handled(handler(server.detach(), Call(*call)).await).with_not_executed();
        }
        Err(refused) => return *refused,
    };
    let schema = reader.schema;
    let reply = run::in_transaction(rules, call, |call, lent| {
        let server = server.detach();
        call.lent(lent, move |call| async move {
            handled(handler(server, Call(call)).await).under_schema(schema)
        })
    });
    result::answer(idempotency, &reader, reply.await)
}

/// The author's function for calls in doubt.
pub type VerifyOn<T> = for<'v> fn(&'v T, InDoubt<'v>) -> Verifying<'v>;

/// Runs a tool whose effect is outside the store.
///
/// # Errors
///
/// The tool's own error, or a refusal.
pub async fn run_under_lease<S: Store, T: Server>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    server: &T,
    call: Call,
    verify: Option<VerifyOn<T>>,
    handler: fn(T, Call) -> Running<'static>,
) -> Result<CallToolResponse, ErrorData> {
    let verify = verify.map(|verify| {
        asking(move |call| {
            let server = server.detach();
            Box::pin(async move { verify(&server, call).await })
        })
    });
    let classify = options
        .classify
        .as_ref()
        .map(|classify| classify as &Classify);
    let (reader, rules, call) = match deduplicated(idempotency, options, verify, call) {
        Ok(Deduplicated::Here(reader, rules, call)) => (reader, rules, call),
        Ok(Deduplicated::ByLayer(call)) => {
            return handled(handler(server.detach(), Call(*call)).await).with_not_executed();
        }
        Err(refused) => return *refused,
    };
    let schema = reader.schema;
    let reply = run::under_lease(rules, call, |call, attempt| {
        let server = server.detach();
        call.attended(attempt.under_schema(schema), move |call| async move {
            let handled = handled(handler(server, Call(call)).await);
            handled.classified(classify).under_schema(schema)
        })
    });
    result::answer(idempotency, &reader, reply.await)
}

/// Gives a closure the lifetimes of a function that verifies.
fn asking<'s>(
    verify: impl for<'v> Fn(InDoubt<'v>) -> Verifying<'v> + Send + Sync + 's,
) -> VerifyFn<'s> {
    Arc::new(verify)
}

/// Where a call is deduplicated.
enum Deduplicated<'s, S> {
    Here(Reader, Rules<'s, S>, Box<ToolCall>),
    /// Our layer does: it could not see that the tool is annotated, because its server does not list
    /// it.
    ByLayer(Box<ToolCall>),
}

/// Decides who deduplicates a call, by its tool's rules.
fn deduplicated<'s, S: Store>(
    idempotency: &Idempotency<S>,
    options: &'static ToolOptions,
    verify: Option<VerifyFn<'s>>,
    Call(mut call): Call,
) -> Result<Deduplicated<'s, S>, Box<ToolResult>> {
    let form = idempotency.settings().refusal_form;
    let tool = idempotency.annotated(options, call.name());
    let policy = tool.policy.map_err(|error| {
        let refusal = Refusal::from(error);
        run::refused(idempotency, call.name(), &refusal);
        let reader = Reader::of_any_tool(form, KeyMaker::of_meta(call.meta()));
        Box::new(reader.refused(&refusal))
    })?;
    let rules = Rules {
        idempotency: idempotency.clone(),
        policy,
        verify,
        added_argument: tool.added_argument,
        must_write: false,
        unused: Some(tool.unused),
        is_listed: true,
    };
    let claimed = call.context.extensions.remove::<UnderRecord>();
    let is_claimed = claimed.is_some_and(|claimed| {
        claimed.tool == call.name() && identity::is_of(&rules, &call, claimed.record)
    });
    if is_claimed {
        rules.take_argument(&mut call);
        return Ok(Deduplicated::ByLayer(Box::new(call)));
    }
    let reader = Reader {
        form,
        maker: Places::of(call.meta(), call.arguments(), &rules.policy).maker(),
        schema: tool.output_schema,
        policy: Some(Arc::clone(&rules.policy)),
    };
    Ok(Deduplicated::Here(reader, rules, Box::new(call)))
}
