//! What the expansion of `#[idempotent]` calls. Not part of the public interface; it changes without
//! notice.

use std::{borrow::Cow, fmt, future::Future, marker::PhantomData, pin::Pin, sync::Arc};

use mcp_idempotent_core::{Refusal, Store, TransactionStore};
use rmcp::{
    handler::server::{
        common::{FromContextPart, schema_for_empty_input, schema_for_input},
        tool::{IntoCallToolResult, ToolCallContext},
    },
    model::{JsonObject, MetaObject},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{options, parts::handled};
use crate::{
    Idempotency,
    call::{
        ToolCall, contract,
        doubt::VerifyFn,
        provenance::{self, Inside},
        result::{self, Handled},
        run::{self, Reply, Rules},
    },
    wire,
};

pub use mcp_idempotent_core::{KeyRequirement, OnDoubt, OnError, OnExpired, PolicyOverride, Wait};
pub use rmcp::{ErrorData, model::CallToolResponse};

pub use super::{
    options::{Mode, ToolOptions},
    parts::{Call, NotCalled, Outcome, Parts},
};
pub use crate::call::doubt::{InDoubt, IntoVerdict, Verifying};

/// A server that can be cloned into an execution that outlives its caller.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot have `#[idempotent]` tools: it is not `Clone + Send + Sync + 'static`",
    label = "this server cannot be taken along",
    note = "an execution goes on when its caller goes away, and takes a clone of the server along; write `#[derive(Clone)]` above `{Self}`, and put what is not `Clone`, `Send` and `Sync` into an `Arc` or a lock"
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

/// The future of the author's function.
pub type Running<'c> = Pin<Box<dyn Future<Output = Result<Outcome, NotCalled>> + Send + 'c>>;

/// The future of an answer. Boxed, so that a tool's own future stays small.
pub type Answering<'a> =
    Pin<Box<dyn Future<Output = Result<CallToolResponse, ErrorData>> + Send + 'a>>;

/// Runs a tool that takes the transaction.
pub fn run_in_transaction<'a, S: TransactionStore, T: Server>(
    idempotency: &'a Idempotency<S>,
    options: &'static ToolOptions,
    server: &'a T,
    call: Call,
    handler: for<'c> fn(T, Call, &'c mut S::Connection) -> Running<'c>,
) -> Answering<'a> {
    answer(idempotency, options, None, call, move |rules, call| {
        run::in_transaction(rules, call, move |call, lent| {
            let server = server.detach();
            Box::pin(async move {
                // Nobody else can have borrowed it.
                let Ok(mut transaction) = lent.borrow() else {
                    unreachable!("the transaction of a call that has just begun is there")
                };
                handled(handler(server, Call(call), &mut transaction).await)
            })
        })
    })
}

/// The author's function for calls in doubt.
pub type VerifyOn<T> = for<'v> fn(&'v T, InDoubt<'v>) -> Verifying<'v>;

/// Runs a tool whose effect is outside the store.
pub fn run_under_lease<'a, S: Store, T: Server>(
    idempotency: &'a Idempotency<S>,
    options: &'static ToolOptions,
    server: &'a T,
    call: Call,
    verify: Option<VerifyOn<T>>,
    handler: fn(T, Call) -> Running<'static>,
) -> Answering<'a> {
    let verify = verify.map(|verify| {
        let server = Arc::new(server.detach());
        asking(move |call| {
            let server = Arc::clone(&server);
            Box::pin(async move { verify(&server, call).await })
        })
    });
    answer(idempotency, options, verify, call, move |rules, call| {
        run::under_lease(rules, call, move |call, attempt| {
            let server = server.detach();
            call.attended(attempt, move |call| async move {
                handled(handler(server, Call(call)).await)
            })
        })
    })
}

/// Gives a closure the lifetimes of a function that verifies.
fn asking(
    verify: impl for<'v> Fn(InDoubt<'v>) -> Verifying<'v> + Send + Sync + 'static,
) -> VerifyFn {
    Arc::new(verify)
}

/// Runs a call under the rules of its tool, and puts the answer into the client's form.
fn answer<'a, S: Store, F>(
    idempotency: &'a Idempotency<S>,
    options: &'static ToolOptions,
    verify: Option<VerifyFn>,
    Call(mut call): Call,
    run: impl FnOnce(Rules<S>, Box<ToolCall>) -> F + Send + 'a,
) -> Answering<'a>
where
    F: Future<Output = Reply<Handled>> + Send,
{
    Box::pin(async move {
        // To a handler, other servers in this process are upstreams: their answers must not be sealed, so
        // it does not get the marker.
        let inside = call.context.extensions.remove::<Inside>();
        let tool = idempotency.annotated(options, call.name());
        let reply = match tool.policy {
            Ok(policy) => {
                let rules = Rules {
                    idempotency: idempotency.clone(),
                    policy,
                    verify,
                    added_argument: tool.added_argument,
                    must_write: false,
                    is_listed: true,
                };
                run(rules, Box::new(call)).await
            }
            Err(error) => {
                let refusal = Refusal::from(error);
                run::refused(idempotency, call.name(), &refusal);
                refusal.into()
            }
        };
        let answer = result::answer(idempotency, reply);
        match inside {
            Some(Inside) => provenance::seal(answer),
            None => answer,
        }
    })
}

/// Stands in for the author's `Parameters<…>` where rmcp's macro looks for the input schema. It takes
/// nothing from the call: the author's own is extracted after the claim.
pub struct Parameters<T>(PhantomData<fn() -> T>);

impl<S, T> FromContextPart<ToolCallContext<'_, S>> for Parameters<T> {
    fn from_context_part(_: &mut ToolCallContext<'_, S>) -> Result<Self, ErrorData> {
        Ok(Self(PhantomData))
    }
}

impl<T> fmt::Debug for Parameters<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parameters")
    }
}

// Everything is delegated: with its own schema id, this type would be listed beside the author's.
impl<T: JsonSchema> JsonSchema for Parameters<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// Stands in for the author's `Json<…>` where rmcp's macro looks for the output schema.
pub struct Json<T> {
    response: CallToolResponse,
    schema: PhantomData<fn() -> T>,
}

impl<T> Json<T> {
    /// The answer of a tool with structured output.
    pub const fn new(response: CallToolResponse) -> Self {
        Self {
            response,
            schema: PhantomData,
        }
    }
}

impl<T> IntoCallToolResult for Json<T> {
    fn into_call_tool_result(self) -> Result<CallToolResponse, ErrorData> {
        Ok(self.response)
    }
}

impl<T> fmt::Debug for Json<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Json").field(&self.response).finish()
    }
}

/// The input schema that rmcp's macro finds for a `Parameters<…>`.
///
/// # Panics
///
/// The schema does not describe an object. rmcp's own expansion panics likewise.
pub fn input_schema<P: JsonSchema + 'static>() -> Arc<JsonObject> {
    schema_for_input::<P>().unwrap_or_else(|error| {
        panic!(
            "Invalid input schema for `{}`: {error}",
            std::any::type_name::<P>()
        )
    })
}

/// The input schema that rmcp's macro gives a tool without parameters.
pub fn empty_input_schema() -> Arc<JsonObject> {
    schema_for_empty_input()
}

/// The author's input schema, with the key argument added if it lacks it.
pub fn with_key_argument(options: &ToolOptions) -> Arc<JsonObject> {
    let schema = options
        .input_schema
        .map_or_else(empty_input_schema, |of| of());
    let Some(name) = options.key_property else {
        return schema;
    };
    let required = options.policy.key == Some(KeyRequirement::Required);
    options::with_key_property(schema, name, required)
}

/// The tool's `_meta`: what the author gave, and the contract.
pub fn meta(options: &ToolOptions, author: Option<MetaObject>) -> MetaObject {
    let mut meta = author.unwrap_or_default();
    meta.insert(wire::CONTRACT.into(), contract::contract(options));
    meta
}
