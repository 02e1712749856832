//! The server under test, in a process of its own. A call's `_meta` says where it is to stop: `_meta` is
//! no part of what was asked, so a retry without it is the same call.

mod inside;
mod outside;
pub(crate) mod planted;

use std::{
    io::Write as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mcp_idempotent_tests::{
    database::{Database, Postgres, Sqlite},
    ledger::Ledger,
};
use mcp_idempotent_tower::{
    Idempotency, MemoryStore, Policy, Scope, Secret, Store,
    store::{redis::RedisStore, sqlite::SqliteStoreBuilder},
};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::{router::tool::ToolRouter, tool::ToolCallContext},
    model::{CallToolRequestParams, CallToolResponse, RequestMetaObject},
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    random::Random,
    row::{Defect, Mode, StoreKind, Transport},
};

/// What the program is called with to be a server.
pub(crate) const SERVE: &str = "serve";

/// In bytes.
pub(crate) const LARGE_RESULT: usize = 20_000;
/// Of effects and results for which there may be no room. No part of it says anything of another.
const HUGE: usize = 200_000;
/// For large effects.
pub(crate) const LARGE_TABLE: &str = "CREATE TABLE large (content text NOT NULL)";

/// Where a call stops: a name of [`Point`].
pub(crate) const STOP_AT: &str = "tests/stop-at";
/// Whose call it is.
pub(crate) const TENANT: &str = "tests/tenant";
/// What else goes wrong with a call: a name of [`Trouble`].
pub(crate) const TROUBLE: &str = "tests/trouble";

/// A place in the life of a call, where its process can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// The key is claimed, and the handler has begun.
    BeforeEffect,
    /// The handler has made its effect. In transaction mode nothing is committed yet, in lease mode
    /// nothing is recorded.
    AfterEffect,
    /// Everything is committed and recorded, and no answer has been sent.
    AfterRecord,
}

impl Point {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeEffect => "before-effect",
            Self::AfterEffect => "after-effect",
            Self::AfterRecord => "after-record",
        }
    }
}

/// What goes wrong inside of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It returns an error after its effect.
    FailAfterEffect,
    /// The database's disk is full when it writes its effect.
    FullForEffect,
    /// The disk is full when its result is recorded.
    FullForRecord,
}

impl Trouble {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::FailAfterEffect => "fail-after-effect",
            Self::FullForEffect => "full-for-effect",
            Self::FullForRecord => "full-for-record",
        }
    }

    fn is_in(self, meta: &RequestMetaObject) -> bool {
        word(meta, TROUBLE) == Some(self.as_str())
    }
}

/// How a server is started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) store: StoreKind,
    pub(crate) mode: Mode,
    pub(crate) transport: Transport,
    /// Of the store.
    pub(crate) address: String,
    pub(crate) ledger: PathBuf,
    pub(crate) connections: u32,
    /// For how long anything is waited for.
    pub(crate) patience: Duration,
    pub(crate) lease: Duration,
    /// Effects and results take much room.
    pub(crate) is_large: bool,
    pub(crate) secrets: Secrets,
}

/// Under which secrets a process knows its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Secrets {
    None,
    Old,
    /// A new one, and the old one as the previous.
    Both,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct Order {
    name: String,
}

#[derive(Debug, Serialize, schemars::JsonSchema)]
struct Receipt {
    name: String,
    /// Which execution made the effect.
    run: String,
    /// Of a large result.
    #[serde(skip_serializing_if = "String::is_empty")]
    padding: String,
}

/// What handlers of all modes do beside their effect.
#[derive(Debug, Clone)]
struct Shop {
    ledger: Ledger,
    runs: Arc<AtomicU64>,
    is_large: bool,
}

impl Shop {
    /// Writes down that a handler has begun. The name of its effect, and of its execution.
    fn begin(&self, meta: &RequestMetaObject, order: &Order) -> (String, String) {
        let effect = effect_of(meta, &order.name);
        self.ledger.append("run", &effect);
        let count = self.runs.fetch_add(1, Ordering::Relaxed);
        (effect, format!("{}-{count}", std::process::id()))
    }

    /// What an execution returns. Every second call has a result that is too large for one message.
    fn receipt(&self, order: Order, run: String) -> Json<Receipt> {
        let is_large = order.name.ends_with(['1', '3', '5', '7', '9']);
        Json(Receipt {
            name: order.name,
            padding: match self.is_large {
                true => incompressible(&run),
                false => "x".repeat(if is_large { LARGE_RESULT } else { 0 }),
            },
            run,
        })
    }

    /// Stops here, if this call is to, until the ledger says otherwise.
    async fn reach(&self, point: Point, meta: &RequestMetaObject, effect: &str) {
        if word(meta, STOP_AT) != Some(point.as_str()) {
            return;
        }
        self.ledger.append(point.as_str(), effect);
        while !gone_on(&self.ledger, effect).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A large text, another for each seed. Of a text that repeats itself the database keeps little.
fn incompressible(seed: &str) -> String {
    let mut random = Random::new(0, seed, 0);
    let letter = |_| {
        char::from(b" !#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ"[random.below(58)])
    };
    (0..HUGE).map(letter).collect()
}

/// What every server does with a call, whatever its tools are.
async fn answer<S: Send + Sync + 'static>(
    server: &S,
    tools: ToolRouter<S>,
    shop: &Shop,
    params: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let meta = context.meta.clone();
    let what = effect_of(&meta, &named(&params));
    let answer = tools
        .call(ToolCallContext::new(server, params, context))
        .await;
    shop.reach(Point::AfterRecord, &meta, &what).await;
    answer
}

/// The name in a call's arguments.
fn named(params: &CallToolRequestParams) -> String {
    let arguments = params.arguments.as_ref();
    let name = arguments.and_then(|arguments| arguments.get("name")?.as_str());
    name.unwrap_or_default().to_owned()
}

/// The file whose existence lets a call go on.
pub(crate) fn gone_on(ledger: &Ledger, effect: &str) -> PathBuf {
    ledger.path().with_extension(format!("go-{effect}"))
}

fn word<'m>(meta: &'m RequestMetaObject, name: &str) -> Option<&'m str> {
    meta.get(name).and_then(|value| value.as_str())
}

fn effect_of(meta: &RequestMetaObject, name: &str) -> String {
    format!("{}.{name}", word(meta, TENANT).unwrap_or_default())
}

fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn idempotency<S: Store>(store: S, settings: &Settings) -> Idempotency<S> {
    let mut policy = Policy::default();
    policy.lease = settings.lease;
    let builder = Idempotency::builder("faults", store).with_policy(policy);
    let secret = |name: &str| Secret::new(format!("{name} of the fault run")).expect("long enough");
    let builder = match settings.secrets {
        Secrets::None => builder,
        Secrets::Old => builder.with_secret(secret("old")),
        Secrets::Both => {
            let builder = builder.with_secret(secret("new"));
            builder.with_previous_secret(secret("old"))
        }
    };
    let tenant = |meta: &RequestMetaObject| Scope::new(word(meta, TENANT).unwrap_or_default());
    let builder = if settings.mode == Mode::Planted(Defect::ScopeIgnored) {
        builder.with_scope_shared_by_all_callers()
    } else {
        builder.with_scope_from(move |context| Ok(tenant(&context.meta)))
    };
    builder.build().expect("settings that go together")
}

/// Serves until it is ended.
pub(crate) async fn serve(settings: &str) {
    let settings: Settings = serde_json::from_str(settings).expect("settings");
    let shop = Shop {
        ledger: Ledger::new(&settings.ledger),
        runs: Arc::default(),
        is_large: settings.is_large,
    };
    let patience = settings.patience;
    match settings.store {
        StoreKind::Postgres => {
            let database = Postgres::open(&settings.address).await;
            if let Mode::Planted(defect) = settings.mode
                && let Some(server) = planted::Server::with(defect, &database, &shop, &settings)
            {
                return serve_over(server, settings.transport).await;
            }
            let pool = database.pool(database.options(), settings.connections);
            let builder = database.builder(pool).with_acquire_timeout(patience);
            let builder = builder.with_answer_timeout(patience);
            let store = builder.with_recovery_timeout(patience).build();
            serve_database::<Postgres>(store.expect("settings"), shop, &settings).await;
        }
        StoreKind::Sqlite => {
            let database = Sqlite::open(&settings.address).await;
            let limit = SqliteStoreBuilder::DEFAULT_TRANSACTION_LIMIT.min(settings.lease / 4);
            let builder = database.builder(settings.connections);
            let builder = builder.with_wait_bound(patience);
            let store = builder.with_transaction_limit(limit).build();
            serve_database::<Sqlite>(store.expect("settings"), shop, &settings).await;
        }
        StoreKind::Memory => serve_outside(MemoryStore::new(), shop, &settings).await,
        StoreKind::Redis => {
            let builder = RedisStore::builder().with_server(settings.address.as_str());
            let builder = builder.expect("an address").with_wait_bound(patience);
            let store = builder.build().expect("settings");
            serve_outside(store, shop, &settings).await;
        }
    }
}

async fn serve_database<D: Database>(store: D::Store, shop: Shop, settings: &Settings) {
    if matches!(settings.mode, Mode::Transaction | Mode::LateTransaction) {
        let server = inside::Server::<D>::new(idempotency(store, settings), shop);
        serve_over(server, settings.transport).await;
    } else {
        serve_outside(store, shop, settings).await;
    }
}

async fn serve_outside<S: Store>(store: S, shop: Shop, settings: &Settings) {
    let server = outside::Server::new(idempotency(store, settings), shop);
    serve_over(server, settings.transport).await;
}

async fn serve_over<H: ServerHandler + Clone>(server: H, transport: Transport) {
    match transport {
        Transport::Stdio => {
            let running = server.serve(rmcp::transport::stdio()).await;
            if let Ok(running) = running {
                drop(running.waiting().await);
            }
        }
        Transport::Http => {
            let config = StreamableHttpServerConfig::default()
                .with_sse_keep_alive(None)
                .with_legacy_session_mode(false)
                .with_json_response(true);
            let service: StreamableHttpService<H, LocalSessionManager> =
                StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), config);
            let router = axum::Router::new().route_service("/mcp", service);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
            let listener = listener.expect("a free port");
            let port = listener.local_addr().expect("it listens").port();
            writeln!(std::io::stdout(), "{port}").expect("a pipe");
            axum::serve(listener, router).await.expect("it listens");
        }
    }
}
