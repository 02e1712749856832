//! What is put around a handler.

use std::{
    env,
    fs::OpenOptions,
    future::Future,
    io::Write as _,
    pin::Pin,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use mcp_idempotent_tower::{
    HandlerService, Idempotency, IdempotencyService, LayeredServer, MemoryStore, OnError,
    ServerExt, ToolCall,
    layer::{IdempotencyLayer, Rule},
    wire,
};
use real::{ErrorData, ServerHandler, model::CallToolResponse};
use tower::{Layer, Service};

/// `compare.py` names one of these.
const SIDE: &str = "RMCP_TESTS_SIDE";
/// A file to which each handler and each call adds a line, so that it shows what was really wrapped.
const SEEN: &str = "RMCP_TESTS_SEEN";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The handler alone.
    Bare,
    /// Behind the layer. No call has a key, so each passes.
    Layer,
    /// Behind the layer. Each call is given a key of its own, so each is claimed and recorded.
    Keys,
    /// As `Keys`, and each call that succeeded is made again. Its caller gets the replay.
    Replays,
    /// Each call is refused before the layer gets it. Tests have to notice.
    Broken,
}

impl Side {
    pub fn of_this_run() -> Self {
        static SIDE_OF_THIS_RUN: OnceLock<Side> = OnceLock::new();
        *SIDE_OF_THIS_RUN.get_or_init(|| match env::var(SIDE).as_deref() {
            Ok("bare") => Self::Bare,
            Ok("layer") | Err(_) => Self::Layer,
            Ok("keys") => Self::Keys,
            Ok("replays") => Self::Replays,
            Ok("broken") => Self::Broken,
            Ok(other) => panic!("{SIDE} is {other:?}"),
        })
    }
}

/// Adds a line to the file of what was seen. Short enough to be written at once.
pub fn saw(what: &str) {
    if let Some(file) = env::var_os(SEEN) {
        let mut file = OpenOptions::new().append(true).open(file).expect(SEEN);
        file.write_all(format!("{what}\n").as_bytes()).expect(SEEN);
    }
}

pub type Wrapped<H> = LayeredServer<H, Around<IdempotencyService<HandlerService<H>, MemoryStore>>>;
pub type LayerInMemory = IdempotencyLayer<MemoryStore>;

/// One layer is for all handlers of one server.
pub fn layer() -> LayerInMemory {
    let idempotency = Idempotency::builder("rmcp's tests", MemoryStore::new())
        .with_fixed_scope("rmcp's tests")
        .build()
        .expect("a server");
    IdempotencyLayer::new(idempotency, Rule::lease(OnError::Release)).expect("a layer")
}

pub fn wrap<H: ServerHandler>(handler: H, layer: &LayerInMemory) -> Wrapped<H> {
    saw("wrapped");
    handler.idempotent(layer.clone()).layered(AroundLayer)
}

/// Outside of the layer: what the side does to a call.
#[derive(Clone)]
pub struct Around<T>(T);

#[derive(Clone)]
pub struct AroundLayer;

impl<T> Layer<T> for AroundLayer {
    type Service = Around<T>;

    fn layer(&self, inner: T) -> Around<T> {
        Around(inner)
    }
}

impl<T> Service<ToolCall> for Around<T>
where
    T: Service<ToolCall, Response = CallToolResponse, Error = ErrorData, Future: Send>,
    T: Clone + Send + 'static,
{
    type Response = CallToolResponse;
    type Error = ErrorData;
    type Future = Pin<Box<dyn Future<Output = Result<CallToolResponse, ErrorData>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ErrorData>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut call: ToolCall) -> Self::Future {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        saw("called");
        let side = Side::of_this_run();
        if matches!(side, Side::Keys | Side::Replays) {
            let key = format!("call {}", NEXT.fetch_add(1, Ordering::Relaxed));
            call.context.meta.insert(wire::KEY.to_owned(), key.into());
        }
        let mut service = self.0.clone();
        Box::pin(async move {
            if side == Side::Broken {
                return Err(ErrorData::internal_error("the planted break", None));
            }
            let again = call.clone();
            let first = service.call(call).await?;
            match first {
                CallToolResponse::Complete(result)
                    if side == Side::Replays && result.is_error != Some(true) =>
                {
                    service.call(again).await.map(unmarked)
                }
                first => Ok(first),
            }
        })
    }
}

/// A replay without the mark that it is one.
fn unmarked(mut replay: CallToolResponse) -> CallToolResponse {
    if let CallToolResponse::Complete(result) = &mut replay
        && let Some(meta) = &mut result.meta
        && meta.remove(wire::REPLAYED).is_some()
    {
        saw("replayed");
        result.meta.take_if(|meta| meta.is_empty());
    }
    replay
}
