//! Tools that write into the store's own database.

use mcp_idempotent_tests::database::{Database, Sqlite, effect};
use mcp_idempotent_tower::{Attempt, Idempotency, idempotent};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{CallToolRequestParams, CallToolResponse, RequestMetaObject},
    service::RequestContext,
    tool, tool_handler, tool_router,
};

use super::{HUGE, Order, Point, Receipt, Shop, Trouble, answer, internal};

/// No free page is left for what comes.
const FILL: &str = "PRAGMA max_page_count = 1";
const MAKE_ROOM: &str = "PRAGMA max_page_count = 1073741823";
/// More than the free pages of a small database can take.
const LARGE: usize = 400_000;

pub(super) struct Server<D: Database> {
    idempotency: Idempotency<D::Store>,
    shop: Shop,
}

impl<D: Database> Clone for Server<D> {
    fn clone(&self) -> Self {
        Self::new(self.idempotency.clone(), self.shop.clone())
    }
}

impl<D: Database> Server<D> {
    pub(super) const fn new(idempotency: Idempotency<D::Store>, shop: Shop) -> Self {
        Self { idempotency, shop }
    }

    async fn write(
        &self,
        connection: &mut D::Connection,
        what: &str,
        run: &str,
    ) -> Result<(), ErrorData> {
        let written = effect::<D>(connection, &format!("{what}/{run}")).await;
        written.map_err(internal)
    }
}

async fn run<D: Database>(connection: &mut D::Connection, sql: &str) -> Result<(), ErrorData> {
    D::run(connection, sql).await.map_err(internal)
}

/// Of which a database keeps every byte.
fn large_effect() -> String {
    format!(
        "INSERT INTO large SELECT string_agg(md5(random()::text), '') FROM generate_series(1, {})",
        HUGE / 32
    )
}

#[tool_router]
impl<D: Database> Server<D> {
    /// Writes one effect, in the record's transaction.
    #[idempotent]
    #[tool]
    async fn act(
        &self,
        connection: &mut D::Connection,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        let (what, run_name) = self.shop.begin(&meta, &order);
        self.shop.reach(Point::BeforeEffect, &meta, &what).await;
        if D::NAME == Sqlite::NAME {
            run::<D>(connection, MAKE_ROOM).await?;
        }
        if Trouble::FullForEffect.is_in(&meta) {
            run::<D>(connection, FILL).await?;
            let large = format!("CREATE TABLE large AS SELECT zeroblob({LARGE}) AS b");
            run::<D>(connection, &large).await?;
        }
        if self.shop.is_large {
            run::<D>(connection, &large_effect()).await?;
        }
        self.write(connection, &what, &run_name).await?;
        let mut receipt = self.shop.receipt(order, run_name);
        if Trouble::FullForRecord.is_in(&meta) {
            run::<D>(connection, FILL).await?;
            receipt.0.padding = "x".repeat(LARGE);
        }
        self.shop.reach(Point::AfterEffect, &meta, &what).await;
        if Trouble::FailAfterEffect.is_in(&meta) {
            return Err(internal("it fails after its effect"));
        }
        Ok(receipt)
    }

    /// Acts outside, and then writes a row in the record's transaction.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn act_late(
        &self,
        attempt: Attempt,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        let (what, run_name) = self.shop.begin(&meta, &order);
        self.shop.reach(Point::BeforeEffect, &meta, &what).await;
        let outside = format!("{what}/{run_name}");
        self.shop.ledger.append("effect", &outside);
        let mut transaction = attempt.begin::<D::Store>().await?;
        self.write(&mut transaction, &what, &run_name).await?;
        drop(transaction);
        self.shop.reach(Point::AfterEffect, &meta, &what).await;
        if Trouble::FailAfterEffect.is_in(&meta) {
            return Err(internal("it fails after its effect"));
        }
        Ok(self.shop.receipt(order, run_name))
    }
}

#[tool_handler]
impl<D: Database> ServerHandler for Server<D> {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        answer(self, Self::tool_router(), &self.shop, params, context).await
    }
}
