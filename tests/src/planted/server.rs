//! A server that protects its tool itself, by hand, and may have one flaw. The kit for authors has to find
//! each of them, and nothing in the server without one.
//!
//! Tests of `mcp-idempotent-tower` include this file by path.

use std::{path::Path, sync::Arc, time::Duration};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use sqlx::{
    SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};
use tokio::{sync::Mutex, time::sleep};

/// The header that names a caller.
pub const USER: &str = "x-user";

/// What is wrong with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_enums,
    reason = "each is a test; one of the crates that include this file has it in public"
)]
pub enum Flaw {
    None,
    /// Keys are not looked at.
    Unprotected,
    /// The effect commits first, and then the record.
    RecordAfterTheEffect,
    /// The key is looked up before anything is locked, and the record is an upsert.
    LookUpBeforeTheLock,
    /// A key is the same, whoever sends it.
    ScopeIgnored,
    /// An error forgets the key, although the tool has acted.
    ReleasedOnError,
    /// Arguments are not compared.
    ConflictUnchecked,
    /// A replay is made anew, and not read.
    AnotherResult,
    /// A caller is answered that the call has worked, and nothing is committed.
    NothingDone,
}

impl Flaw {
    pub const ALL: [(&'static str, Self); 9] = [
        ("none", Self::None),
        ("unprotected", Self::Unprotected),
        ("record-after-the-effect", Self::RecordAfterTheEffect),
        ("look-up-before-the-lock", Self::LookUpBeforeTheLock),
        ("scope-ignored", Self::ScopeIgnored),
        ("released-on-error", Self::ReleasedOnError),
        ("conflict-unchecked", Self::ConflictUnchecked),
        ("another-result", Self::AnotherResult),
        ("nothing-done", Self::NothingDone),
    ];
}

/// The server. `charge` writes one row of the table `charge`.
#[derive(Debug, Clone)]
pub struct Planted {
    flaw: Flaw,
    pub pool: SqlitePool,
    /// Calls of this process run one by one.
    turn: Arc<Mutex<()>>,
    /// How long a call takes.
    pace: Duration,
}

/// A call, as it is recorded.
struct Call<'a> {
    scope: &'a str,
    key: Option<&'a str>,
    arguments: String,
}

type Answer = Result<CallToolResult, sqlx::Error>;

impl Planted {
    pub async fn open(file: &Path, flaw: Flaw, pace: Duration) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(30));
        let pool = SqlitePool::connect_with(options).await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS charge (number INTEGER PRIMARY KEY AUTOINCREMENT); \
             CREATE TABLE IF NOT EXISTS call (scope TEXT, key TEXT, arguments TEXT, number INTEGER, \
             failed INTEGER, PRIMARY KEY (scope, key))",
        )
        .execute(&pool)
        .await
        .unwrap();
        Self {
            flaw,
            pool,
            turn: Arc::default(),
            pace,
        }
    }

    async fn charge(&self, call: &Call<'_>, fails: bool) -> Answer {
        let _turn = match self.flaw {
            Flaw::LookUpBeforeTheLock | Flaw::Unprotected => None,
            _ => Some(self.turn.lock().await),
        };
        if self.flaw == Flaw::Unprotected {
            let mut connection = self.pool.acquire().await?;
            sleep(self.pace).await;
            return Ok(told(act(&mut connection).await?, fails));
        }
        if self.flaw == Flaw::LookUpBeforeTheLock {
            let mut connection = self.pool.acquire().await?;
            if let Some(recorded) = self.recorded(&mut connection, call).await? {
                return Ok(recorded);
            }
            sleep(self.pace).await;
        }
        let mut transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        if self.flaw != Flaw::LookUpBeforeTheLock {
            if let Some(recorded) = self.recorded(&mut transaction, call).await? {
                return Ok(recorded);
            }
            sleep(self.pace).await;
        }
        let number = act(&mut transaction).await?;
        match self.flaw {
            Flaw::NothingDone => {
                transaction.rollback().await?;
                return Ok(told(number, fails));
            }
            Flaw::RecordAfterTheEffect => {
                transaction.commit().await?;
                sleep(self.pace).await;
                transaction = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            }
            _ => {}
        }
        if !(fails && self.flaw == Flaw::ReleasedOnError) {
            record(&mut transaction, call, number, fails).await?;
        }
        transaction.commit().await?;
        Ok(told(number, fails))
    }

    async fn recorded(
        &self,
        connection: &mut SqliteConnection,
        call: &Call<'_>,
    ) -> Result<Option<CallToolResult>, sqlx::Error> {
        let found = "SELECT arguments, number, failed FROM call WHERE scope = ? AND key = ?";
        let found: Option<(String, i64, bool)> = sqlx::query_as(found)
            .bind(call.scope)
            .bind(call.key)
            .fetch_optional(connection)
            .await?;
        Ok(found.map(|(arguments, number, failed)| {
            if arguments != call.arguments && self.flaw != Flaw::ConflictUnchecked {
                return error("this key was used for another call");
            }
            let number = number + i64::from(self.flaw == Flaw::AnotherResult) * 1000;
            told(number, failed)
        }))
    }
}

async fn act(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("INSERT INTO charge DEFAULT VALUES RETURNING number")
        .fetch_one(connection)
        .await
}

async fn record(
    connection: &mut SqliteConnection,
    call: &Call<'_>,
    number: i64,
    failed: bool,
) -> Result<(), sqlx::Error> {
    if call.key.is_none() {
        return Ok(());
    }
    sqlx::query("INSERT OR REPLACE INTO call VALUES (?, ?, ?, ?, ?)")
        .bind(call.scope)
        .bind(call.key)
        .bind(&call.arguments)
        .bind(number)
        .bind(failed)
        .execute(connection)
        .await
        .map(drop)
}

fn told(number: i64, failed: bool) -> CallToolResult {
    if failed {
        return error("the charge was made, and its confirmation failed");
    }
    CallToolResult::structured(json!({ "number": number }))
}

fn error(text: &str) -> CallToolResult {
    CallToolResult::structured_error(json!({ "error": text }))
}

impl ServerHandler for Planted {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("planted", "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema: JsonObject = [("type".to_owned(), json!("object"))].into_iter().collect();
        let tool = Tool::new("charge", "Charge a card.", schema);
        Ok(ListToolsResult::with_all_items(vec![tool]))
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let head = context.extensions.get::<http::request::Parts>();
        let user = head.and_then(|head| head.headers.get(USER)?.to_str().ok());
        let arguments = params.arguments.unwrap_or_default();
        let call = Call {
            scope: match self.flaw {
                Flaw::ScopeIgnored => "everybody",
                _ => user.unwrap_or("nobody"),
            },
            key: context.meta.get("idempotency-key").and_then(Value::as_str),
            arguments: json!(arguments).to_string(),
        };
        let fails = arguments.get("fails") == Some(&json!(true));
        // As careless servers do: a cancelled call stops where it is.
        let answer = tokio::select! {
            answer = self.charge(&call, fails) => answer,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
        };
        match answer {
            Ok(result) => Ok(result.into()),
            Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
        }
    }
}
