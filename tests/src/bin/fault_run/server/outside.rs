//! Tools whose effect is outside of every database: a line in the ledger.

use mcp_idempotent_tower::{Idempotency, Store, idempotent};
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{CallToolRequestParams, CallToolResponse, RequestMetaObject},
    service::RequestContext,
    tool, tool_handler, tool_router,
};

use super::{Order, Point, Receipt, Shop, Trouble, answer, internal};

pub(super) struct Server<S: Store> {
    idempotency: Idempotency<S>,
    shop: Shop,
}

impl<S: Store> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self::new(self.idempotency.clone(), self.shop.clone())
    }
}

impl<S: Store> Server<S> {
    pub(super) const fn new(idempotency: Idempotency<S>, shop: Shop) -> Self {
        Self { idempotency, shop }
    }

    async fn act_outside(
        &self,
        order: Order,
        meta: &RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        let (what, run) = self.shop.begin(meta, &order);
        self.shop.reach(Point::BeforeEffect, meta, &what).await;
        self.shop.ledger.append("effect", &format!("{what}/{run}"));
        self.shop.reach(Point::AfterEffect, meta, &what).await;
        if Trouble::FailAfterEffect.is_in(meta) {
            return Err(internal("it fails after its effect"));
        }
        Ok(self.shop.receipt(order, run))
    }
}

#[tool_router]
impl<S: Store> Server<S> {
    /// In doubt, it is not repeated.
    #[idempotent(on_error = in_doubt)]
    #[tool]
    async fn act(
        &self,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        self.act_outside(order, &meta).await
    }

    /// In doubt, it is repeated, and nobody can tell that it is a repeat.
    #[idempotent(on_error = in_doubt, on_doubt = rerun)]
    #[tool]
    async fn act_again(
        &self,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        self.act_outside(order, &meta).await
    }

    /// It says that an error proves that nothing happened, which is not so.
    #[idempotent(on_error = release)]
    #[tool]
    async fn act_and_release(
        &self,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        self.act_outside(order, &meta).await
    }

    /// Nothing protects it.
    #[tool]
    async fn act_bare(
        &self,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        self.act_outside(order, &meta).await
    }
}

#[tool_handler]
impl<S: Store> ServerHandler for Server<S> {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        answer(self, Self::tool_router(), &self.shop, params, context).await
    }
}
