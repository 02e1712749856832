//! A server without annotations, whose tools write through the call's transaction, and where it
//! can be stopped.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::future::BoxFuture;
use mcp_idempotent_tests::database::{Postgres, effect};
use mcp_idempotent_tower::{
    Idempotency, IdempotencyLayer, LayeredServer, ServerExt as _, ToolCall, ToolService, Tx,
    layer::Rule, store::postgres::PostgresStore,
};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler, handler::server::wrapper::Parameters,
    model::CallToolResponse, service::RequestContext, tool, tool_handler, tool_router,
};
use tokio::sync::Semaphore;
use tower::{Service, layer::layer_fn};

use crate::world::{Gate, within_patience};

/// Where the first call is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The key is claimed, the handler has not begun.
    BeforeHandler,
    /// The handler has written.
    InHandler,
    /// Everything is committed.
    BeforeAnswer,
}

/// Stops the first call that comes by, and no other; without a place none.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    place: Option<Place>,
    was_used: Arc<AtomicBool>,
    gate: Gate,
    left: Arc<Semaphore>,
}

impl Stop {
    pub(super) fn at(place: Option<Place>) -> Self {
        Self {
            place,
            was_used: Arc::default(),
            gate: Gate::new(),
            left: Arc::new(Semaphore::new(0)),
        }
    }

    async fn pass(&self, place: Place, context: RequestContext<RoleServer>) {
        if Some(place) != self.place || self.was_used.swap(true, Ordering::SeqCst) {
            return;
        }
        let left = Arc::clone(&self.left);
        tokio::spawn(async move {
            context.ct.cancelled().await;
            left.add_permits(1);
        });
        self.gate.pass().await;
    }

    /// Waits for the call.
    pub(super) async fn arrival(&self) {
        self.gate.arrival().await;
    }

    /// Waits until the server has noticed that the caller is gone.
    pub(super) async fn departure(&self) {
        within_patience(self.left.acquire()).await.unwrap().forget();
    }

    pub(super) fn open(&self) {
        self.gate.open();
    }
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Order {
    name: String,
    /// How long the answer is.
    #[serde(default)]
    length: usize,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    /// How many handlers have started, this one included.
    number: u32,
    text: String,
}

#[derive(Debug, Clone)]
pub(super) struct Shop {
    runs: Arc<AtomicU32>,
    stop: Option<Stop>,
}

async fn write(tx: &mut Tx<PostgresStore>, name: &str) -> Result<(), ErrorData> {
    effect::<Postgres>(tx, name)
        .await
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

#[tool_router]
impl Shop {
    /// Orders something.
    #[tool]
    async fn order(
        &self,
        mut tx: Tx<PostgresStore>,
        Parameters(order): Parameters<Order>,
        context: RequestContext<RoleServer>,
    ) -> Result<Json<Receipt>, ErrorData> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        write(&mut tx, &order.name).await?;
        if let Some(stop) = &self.stop {
            stop.pass(Place::InHandler, context).await;
        }
        let text = "x".repeat(order.length);
        Ok(Json(Receipt { number, text }))
    }

    /// Sends something back.
    #[tool]
    async fn send_back(
        &self,
        mut tx: Tx<PostgresStore>,
        Parameters(order): Parameters<Order>,
    ) -> Result<String, ErrorData> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        write(&mut tx, &order.name).await?;
        Ok(number.to_string())
    }

    /// Writes, and finds that there is none.
    #[tool]
    async fn order_what_is_sold_out(
        &self,
        mut tx: Tx<PostgresStore>,
        Parameters(order): Parameters<Order>,
    ) -> Result<String, String> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        write(&mut tx, &order.name)
            .await
            .map_err(|error| error.to_string())?;
        Err(format!("sold out {number}"))
    }

    /// Writes, and fails.
    #[tool]
    async fn order_and_fail(
        &self,
        mut tx: Tx<PostgresStore>,
        Parameters(order): Parameters<Order>,
    ) -> Result<String, ErrorData> {
        let number = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        write(&mut tx, &order.name).await?;
        Err(ErrorData::internal_error(format!("failed {number}"), None))
    }
}

#[tool_handler]
impl ServerHandler for Shop {}

impl Shop {
    pub(super) fn new() -> Self {
        Self {
            runs: Arc::default(),
            stop: None,
        }
    }

    pub(super) fn stopping(stop: &Stop) -> Self {
        Self {
            stop: Some(stop.clone()),
            ..Self::new()
        }
    }

    /// How often a handler was started.
    pub(super) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    /// Behind the layer, in transaction mode.
    pub(super) fn behind(
        &self,
        idempotency: &Idempotency<PostgresStore>,
    ) -> LayeredServer<Self, impl ToolService> {
        let layer = IdempotencyLayer::new(idempotency.clone(), Rule::transaction()).unwrap();
        let above = self.stop.clone();
        let below = self.stop.clone();
        self.clone()
            .layered(layer_fn(move |inner| Stopping {
                inner,
                stop: below.clone(),
                place: Place::BeforeHandler,
            }))
            .idempotent(layer)
            .layered(layer_fn(move |inner| Stopping {
                inner,
                stop: above.clone(),
                place: Place::BeforeAnswer,
            }))
    }
}

/// A service of somebody else's in the stack, above or below ours.
#[derive(Debug, Clone)]
struct Stopping<T> {
    inner: T,
    stop: Option<Stop>,
    place: Place,
}

impl<T: ToolService> Service<ToolCall> for Stopping<T> {
    type Response = CallToolResponse;
    type Error = ErrorData;
    type Future = BoxFuture<'static, Result<CallToolResponse, ErrorData>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ErrorData>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: ToolCall) -> Self::Future {
        let Self { inner, stop, place } = self.clone();
        Box::pin(async move {
            let Some(stop) = stop else {
                return inner.oneshot(call).await;
            };
            let context = call.context.clone();
            if place == Place::BeforeHandler {
                stop.pass(place, context).await;
                return inner.oneshot(call).await;
            }
            let answer = inner.oneshot(call).await;
            stop.pass(place, context).await;
            answer
        })
    }
}
