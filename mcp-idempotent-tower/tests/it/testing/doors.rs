//! Servers behind either door pass, in both modes, whatever their store does.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use http::request::Parts;
use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyLayer, MemoryStore, OnError, Scope, ServerExt as _,
    SqliteStore, Tx, idempotent,
    layer::Rule,
    testing::{Check, FaultyStore, Report, StoreFaults, assert_idempotent},
};
use rmcp::{
    ErrorData, Json, RoleServer, handler::server::wrapper::Parameters, service::RequestContext,
    tool, tool_router,
};
use serde_json::{Value, json};
use sqlx::SqliteConnection;
use tempfile::TempDir;

type Store = FaultyStore<SqliteStore>;

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Expense {
    cents: i64,
    #[serde(default)]
    outcome: Outcome,
}

#[derive(Debug, Default, Clone, Copy, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    #[default]
    Booked,
    Failed,
    Panicked,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Booked {
    id: i64,
}

impl Outcome {
    fn come_out(self) -> Result<(), ErrorData> {
        match self {
            Self::Booked => Ok(()),
            Self::Failed => Err(ErrorData::internal_error("no receipt printer", None)),
            Self::Panicked => panic!("no receipt printer"),
        }
    }
}

#[derive(Clone)]
struct Expenses {
    idempotency: Idempotency<Store>,
    runs: Arc<AtomicU64>,
}

#[tool_router(server_handler)]
impl Expenses {
    #[idempotent]
    #[tool]
    async fn book(
        &self,
        tx: &mut SqliteConnection,
        Parameters(expense): Parameters<Expense>,
    ) -> Result<Json<Booked>, ErrorData> {
        self.runs.fetch_add(1, SeqCst);
        write(tx, &expense).await
    }

    #[idempotent(key = required, on_error = in_doubt, wait = reject)]
    #[tool]
    async fn book_outside(
        &self,
        Parameters(expense): Parameters<Expense>,
    ) -> Result<Json<Booked>, ErrorData> {
        self.runs.fetch_add(1, SeqCst);
        let pool = self.idempotency.store().inner().pool();
        let mut connection = pool.acquire().await.unwrap();
        write(&mut connection, &expense).await
    }

    #[tool]
    async fn layered(
        &self,
        mut tx: Tx<Store>,
        Parameters(expense): Parameters<Expense>,
    ) -> Result<Json<Booked>, ErrorData> {
        self.runs.fetch_add(1, SeqCst);
        write(&mut tx, &expense).await
    }
}

async fn write(
    connection: &mut SqliteConnection,
    expense: &Expense,
) -> Result<Json<Booked>, ErrorData> {
    let id = sqlx::query_scalar("INSERT INTO expense (cents) VALUES (?) RETURNING id")
        .bind(expense.cents)
        .fetch_one(connection)
        .await
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    expense.outcome.come_out()?;
    Ok(Json(Booked { id }))
}

/// Who a request comes from.
fn user(context: &RequestContext<RoleServer>) -> Result<Scope, Denied> {
    let head = context.extensions.get::<Parts>();
    let user = head.and_then(|head| head.headers.get("x-user"));
    let user = user.ok_or_else(|| Denied::new("nobody"))?;
    Ok(Scope::new(user.to_str().unwrap()))
}

fn named(name: &'static str) -> impl Fn(&mut Parts) + Send + Sync + 'static {
    move |head| drop(head.headers.insert("x-user", name.parse().unwrap()))
}

/// The server, and a check of one of its tools with every scenario that there is.
async fn expenses(directory: &TempDir, tool: &str) -> (Expenses, Check) {
    let store = SqliteStore::open(directory.path().join("expenses.db"));
    let store = store.await.unwrap();
    let pool = store.pool().clone();
    sqlx::query("CREATE TABLE expense (id INTEGER PRIMARY KEY AUTOINCREMENT, cents INTEGER)")
        .execute(&pool)
        .await
        .unwrap();
    let faults = StoreFaults::new();
    let idempotency = Idempotency::builder("expenses", FaultyStore::new(store, faults.clone()))
        .with_scope_from(user)
        .build()
        .unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    let server = Expenses {
        idempotency,
        runs: Arc::clone(&runs),
    };
    let check = Check::new(tool, move || {
        let pool = pool.clone();
        async move {
            let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM expense");
            count.fetch_one(&pool).await
        }
    })
    .with_executions(move || std::future::ready(runs.load(SeqCst)))
    .with_arguments(json!({ "cents": 250 }))
    .with_failure("an error", json!({ "cents": 250, "outcome": "failed" }))
    .with_failure("a panic", json!({ "cents": 250, "outcome": "panicked" }))
    .with_callers(named("alice"), named("bob"))
    .with_store_faults(faults);
    (server, check)
}

fn scene<'a>(report: &'a Report, name: &str) -> &'a mcp_idempotent_tower::testing::Scene {
    let scene = report.scenes().iter().find(|it| it.name() == name);
    scene.unwrap_or_else(|| panic!("not played: {name}\n{report}"))
}

#[tokio::test]
async fn an_annotated_tool_in_transaction_mode_passes() {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = expenses(&directory, "book").await;
    let report = check
        .run(server)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.scenes().len(), 22, "{report}");
    let panicked = scene(&report, "a panic, then repeated");
    assert_eq!((panicked.effects(), panicked.executions()), (0, Some(2)));
    let away = scene(&report, "the store is away, then repeated");
    assert_eq!(away.told(), "idempotency_store_unavailable, result");
    assert_eq!((away.effects(), away.executions()), (1, Some(1)));
    let other = scene(&report, "another caller with the same key");
    assert_eq!((other.effects(), other.told()), (2, "result ×2".to_owned()));
    let json = report.to_json();
    assert_eq!(json["fine"], true);
    assert_eq!(json["scenarios"][0]["told"], json!(["result"]));
    assert_eq!(json["notPlayed"], Value::Array(Vec::new()));
}

#[tokio::test]
async fn an_annotated_tool_in_lease_mode_passes() {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = expenses(&directory, "book_outside").await;
    let report = check
        .run(server)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let failed = scene(&report, "an error, then repeated");
    assert_eq!((failed.effects(), failed.executions()), (1, Some(1)));
    let unkeyed = scene(&report, "repeated without a key");
    assert_eq!(unkeyed.told(), "idempotency_key_required ×2");
    let lost = scene(
        &report,
        "the store fails at the end of the call, then repeated",
    );
    assert_eq!((lost.effects(), lost.executions()), (1, Some(1)));
}

#[tokio::test]
async fn a_server_behind_the_layer_passes() {
    let directory = tempfile::tempdir().unwrap();
    let (server, check) = expenses(&directory, "layered").await;
    let layer = IdempotencyLayer::new(server.idempotency.clone(), Rule::transaction()).unwrap();
    assert_idempotent(server.idempotent(layer), check).await;
}

/// A server whose author says that all callers are one.
#[tokio::test]
async fn a_scope_that_all_callers_share_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let (mut server, check) = expenses(&directory, "book").await;
    let store = server.idempotency.store().clone();
    let idempotency = Idempotency::builder("expenses", store).with_fixed_scope("everybody");
    server.idempotency = idempotency.build().unwrap();
    let error = check.run(server).await.unwrap_err();
    let findings: Vec<_> = error.report().findings().collect();
    assert_eq!(findings.len(), 1, "{error}");
    assert!(
        findings[0].contains("was given the first caller's result"),
        "{error}"
    );
}

/// A tool in lease mode whose author says that an error proves that nothing happened.
#[tokio::test]
async fn a_release_on_error_after_acting_is_found() {
    #[derive(Clone)]
    struct Mailer {
        idempotency: Idempotency<MemoryStore>,
        sent: Arc<AtomicU64>,
    }

    #[tool_router(server_handler)]
    impl Mailer {
        #[tool]
        async fn send(
            &self,
            Parameters(expense): Parameters<Expense>,
        ) -> Result<String, ErrorData> {
            let number = self.sent.fetch_add(1, SeqCst);
            expense.outcome.come_out()?;
            Ok(format!("letter {number}"))
        }
    }

    let sent = Arc::new(AtomicU64::new(0));
    let server = Mailer {
        idempotency: Idempotency::for_stdio("mailer", MemoryStore::new()).unwrap(),
        sent: Arc::clone(&sent),
    };
    let check = Check::new("send", move || std::future::ready(sent.load(SeqCst)))
        .with_arguments(json!({ "cents": 85 }))
        .with_failure("an error", json!({ "cents": 85, "outcome": "failed" }));
    let layered = |on_error| {
        let layer = IdempotencyLayer::new(server.idempotency.clone(), Rule::lease(on_error));
        server.clone().idempotent(layer.unwrap())
    };
    assert_idempotent(layered(OnError::InDoubt), check.clone()).await;
    let error = check.run(layered(OnError::Release)).await.unwrap_err();
    let findings: Vec<_> = error.report().findings().collect();
    assert_eq!(findings.len(), 1, "{error}");
    assert!(
        findings[0].contains("The error gave the key back"),
        "{error}"
    );
}
