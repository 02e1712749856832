use mcp_idempotent_tower::{
    Attempt, Idempotency, InDoubt, NotExecuted, Policy, Verdict, Wait, idempotent,
};
use rmcp::{
    ErrorData, Json, ServerHandler, ServiceExt as _, handler::server::wrapper::Parameters, tool,
    tool_handler, tool_router,
};

use super::{PaymentApi, Place, Settings};
use crate::{
    database::{Database, Postgres, Sqlite, effect},
    ledger::{Clock, Ledger},
};

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Payment {
    name: String,
}

#[derive(Debug, serde::Serialize, schemars::JsonSchema)]
struct Paid {
    name: String,
    /// The API's number of it.
    id: String,
    /// The process that got the number.
    process: u32,
}

impl Paid {
    fn new(name: String, id: String) -> Self {
        Self {
            name,
            id,
            process: std::process::id(),
        }
    }
}

/// Tools that pay, and differ in what they do about a payment in doubt.
#[derive(Debug)]
pub struct Server<D: Database> {
    idempotency: Idempotency<D::Store>,
    api: PaymentApi,
    ledger: Ledger,
    stop_at: Option<Place>,
}

impl<D: Database> Clone for Server<D> {
    fn clone(&self) -> Self {
        Self {
            idempotency: self.idempotency.clone(),
            api: self.api.clone(),
            ledger: self.ledger.clone(),
            stop_at: self.stop_at,
        }
    }
}

impl<D: Database> Server<D> {
    /// On a store of the test's choice.
    pub fn on(store: D::Store, settings: &Settings) -> Self {
        let mut policy = Policy::default();
        policy.lease = settings.lease;
        if settings.reject_running {
            policy.wait = Wait::Reject;
        }
        let idempotency = Idempotency::builder("outside", store)
            .with_fixed_scope("tester")
            .with_policy(policy)
            .build()
            .unwrap();
        Self {
            idempotency,
            api: PaymentApi::new(&settings.api, settings.timeout),
            ledger: Ledger::new(&settings.ledger),
            stop_at: settings.stop_at,
        }
    }

    /// The engine, for an operator.
    pub const fn idempotency(&self) -> &Idempotency<D::Store> {
        &self.idempotency
    }

    async fn pay(&self, attempt: &Attempt, payment: Payment) -> Result<Json<Paid>, ErrorData> {
        let name = &payment.name;
        self.ledger.append("run", name);
        self.stop(Place::BeforeCall, name).await;
        attempt.ensure_current().await.map_err(NotExecuted::mark)?;
        let id = self
            .api
            .pay(&attempt.downstream_key("payment"), name)
            .await?;
        self.stop(Place::AfterCall, name).await;
        Ok(Json(Paid::new(payment.name, id)))
    }

    async fn stop(&self, place: Place, name: &str) {
        if self.stop_at == Some(place) {
            self.ledger.append("paused", name);
            self.ledger.until_released().await;
        }
    }

    async fn find_out(&self, call: InDoubt<'_>) -> Result<Verdict, reqwest::Error> {
        let found = self.api.find(&call.downstream_key("payment")).await?;
        let Ok(Payment { name }) = call.parameters() else {
            return Ok(Verdict::Unknown);
        };
        Ok(match found {
            Some(id) => Verdict::committed(Json(Paid::new(name, id))),
            None => Verdict::NotCommitted,
        })
    }
}

#[tool_router]
impl<D: Database> Server<D> {
    /// A payment in doubt is refused.
    #[idempotent(on_error = in_doubt, on_doubt = fail)]
    #[tool]
    async fn pay_or_fail(
        &self,
        attempt: Attempt,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.pay(&attempt, payment).await
    }

    /// A payment in doubt is made again.
    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn pay_or_rerun(
        &self,
        attempt: Attempt,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.pay(&attempt, payment).await
    }

    /// The API is asked about a payment in doubt.
    #[idempotent(on_error = in_doubt, on_doubt = verify(Self::find_out))]
    #[tool]
    async fn pay_or_verify(
        &self,
        attempt: Attempt,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.pay(&attempt, payment).await
    }

    /// An error is taken to prove that nothing happened.
    #[idempotent(on_error = release)]
    #[tool]
    async fn pay_or_release(
        &self,
        attempt: Attempt,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Paid>, ErrorData> {
        self.pay(&attempt, payment).await
    }

    /// A payment, and a row that commits together with the record.
    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn pay_and_write(
        &self,
        attempt: Attempt,
        Parameters(payment): Parameters<Payment>,
    ) -> Result<Json<Paid>, ErrorData> {
        let paid = self.pay(&attempt, payment).await?;
        let mut transaction = attempt.begin::<D::Store>().await?;
        effect::<D>(&mut transaction, &paid.0.name)
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        Ok(paid)
    }

    /// What this process's clock of the day shows.
    #[tool]
    async fn clock(&self) -> String {
        Clock::now_here()
    }
}

#[tool_handler]
impl<D: Database> ServerHandler for Server<D> {}

/// Serves over stdin and stdout until they are closed.
pub async fn serve(settings: &str) {
    let settings: Settings = serde_json::from_str(settings).unwrap();
    match settings.database.as_str() {
        Postgres::NAME => serve_on::<Postgres>(&settings).await,
        Sqlite::NAME => serve_on::<Sqlite>(&settings).await,
        other => panic!("no such database: {other}"),
    }
}

async fn serve_on<D: Database>(settings: &Settings) {
    let database = D::open(&settings.address).await;
    let store = database.store_for_lease(settings.connections, settings.lease);
    let server = Server::<D>::on(store, settings);
    let running = server.serve(rmcp::transport::stdio()).await.unwrap();
    drop(running.waiting().await);
}
