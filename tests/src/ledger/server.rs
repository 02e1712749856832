use std::{future::pending, time::Duration};

use mcp_idempotent_tower::{Idempotency, IdempotencyBuilder, Secret, Store, idempotent};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::{tool::ToolCallContext, wrapper::Parameters},
    model::{CallToolRequestParams, CallToolResponse},
    service::RequestContext,
    tool, tool_handler, tool_router,
};

use super::{Clock, Ledger};
use crate::database::{Database, Postgres, Sqlite, effect};

/// Where a handler stops for ever, to be killed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the places where a test kills")]
pub enum Pause {
    /// After its write.
    BeforeCommit,
    /// When everything is committed and the answer has not been sent.
    AfterCommit,
}

impl Pause {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeCommit => "before-commit",
            Self::AfterCommit => "after-commit",
        }
    }
}

/// Which secrets a server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the steps of a rotation")]
pub enum Secrets {
    None,
    /// The previous version of a server.
    Old,
    /// The next one, while the secret is replaced.
    Both,
    New,
}

impl Secrets {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Old => "old",
            Self::Both => "both",
            Self::New => "new",
        }
    }

    fn give_to<S: Store>(self, builder: IdempotencyBuilder<S>) -> IdempotencyBuilder<S> {
        let secret = |text: &str| Secret::new(text).unwrap();
        let (old, new) = (secret("the previous secret"), secret("the secret to come"));
        match self {
            Self::None => builder,
            Self::Old => builder.with_secret(old),
            Self::Both => builder.with_secret(new).with_previous_secret(old),
            Self::New => builder.with_secret(new),
        }
    }
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Charge {
    name: String,
    /// Go on only when the ledger is released.
    #[serde(default)]
    hold: bool,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Receipt {
    name: String,
    /// The process that did it.
    process: u32,
}

struct Server<D: Database> {
    idempotency: Idempotency<D::Store>,
    ledger: Ledger,
    pause: Option<Pause>,
}

impl<D: Database> Clone for Server<D> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            ledger: self.ledger.clone(),
            pause: self.pause,
        }
    }
}

#[tool_router]
impl<D: Database> Server<D> {
    /// Writes one line into the ledger and one effect into the database.
    #[idempotent]
    #[tool]
    async fn charge(
        &self,
        connection: &mut D::Connection,
        Parameters(Charge { name, hold }): Parameters<Charge>,
    ) -> Result<Json<Receipt>, ErrorData> {
        self.ledger.append("run", &name);
        effect::<D>(connection, &name)
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        if hold {
            self.ledger.until_released().await;
        }
        if self.pause == Some(Pause::BeforeCommit) {
            self.ledger.append("paused", &name);
            pending::<()>().await;
        }
        Ok(Json(Receipt {
            name,
            process: std::process::id(),
        }))
    }

    /// What this process's clock of the day shows.
    #[tool]
    async fn clock(&self) -> String {
        Clock::now_here()
    }
}

#[tool_handler]
impl<D: Database> ServerHandler for Server<D> {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = params.arguments.as_ref().map(|arguments| {
            let name = arguments.get("name").and_then(|name| name.as_str());
            name.unwrap_or_default().to_owned()
        });
        let context = ToolCallContext::new(self, params, context);
        let answer = Self::tool_router().call(context).await;
        if self.pause == Some(Pause::AfterCommit) {
            self.ledger.append("paused", &name.unwrap_or_default());
            pending::<()>().await;
        }
        answer
    }
}

/// Serves over stdin and stdout until they are closed. `arguments`: the kind of the database, its
/// address, the ledger's path, the size of the pool, how many milliseconds a call waits for its
/// turn, where to pause, and which secrets it knows.
pub async fn serve(arguments: &[String]) {
    let [kind, address, ledger, connections, bound, pause, secrets] = arguments else {
        panic!("seven arguments: {arguments:?}");
    };
    let secrets = [Secrets::None, Secrets::Old, Secrets::Both, Secrets::New]
        .into_iter()
        .find(|known| known.as_str() == secrets)
        .unwrap();
    let ledger = Ledger::new(ledger);
    let connections = connections.parse().unwrap();
    let bound = Duration::from_millis(bound.parse().unwrap());
    let pause = [Pause::BeforeCommit, Pause::AfterCommit]
        .into_iter()
        .find(|place| place.as_str() == pause);
    match kind.as_str() {
        Postgres::NAME => {
            serve_on::<Postgres>(address, ledger, connections, bound, pause, secrets).await
        }
        Sqlite::NAME => {
            serve_on::<Sqlite>(address, ledger, connections, bound, pause, secrets).await
        }
        other => panic!("no such database: {other}"),
    }
}

async fn serve_on<D: Database>(
    address: &str,
    ledger: Ledger,
    connections: u32,
    bound: Duration,
    pause: Option<Pause>,
    secrets: Secrets,
) {
    let database = D::open(address).await;
    let store = database.store_that_waits(connections, bound);
    let idempotency = Idempotency::builder("ledger", store).with_fixed_scope("tester");
    let idempotency = secrets.give_to(idempotency).build().unwrap();
    let server = Server::<D> {
        idempotency,
        ledger,
        pause,
    };
    let running = server.serve(rmcp::transport::stdio()).await.unwrap();
    drop(running.waiting().await);
}
