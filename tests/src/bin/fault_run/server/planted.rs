//! A small server that keeps its own records on Postgres, by hand. It is right, or has one defect that
//! the judge has to find.

use std::time::Duration;

use mcp_idempotent_tests::database::{Postgres, effect};
use mcp_idempotent_tower::wire;
use rmcp::{
    ErrorData, Json, RoleServer, ServerHandler,
    handler::server::wrapper::Parameters,
    model::{CallToolRequestParams, CallToolResponse, ErrorCode, RequestMetaObject},
    service::RequestContext,
    tool, tool_handler, tool_router,
};
use serde_json::json;
use sqlx::{PgPool, Row as _};

use super::{Order, Point, Receipt, Settings, Shop, TENANT, answer, internal, word};
use crate::row::Defect;

/// What it needs beside the effects.
pub(crate) const TABLE: &str = "CREATE TABLE planted (
    tenant text, key text, arguments text NOT NULL, token bigint NOT NULL,
    lease_until timestamptz NOT NULL, run text, PRIMARY KEY (tenant, key))";

#[derive(Debug, Clone)]
pub(super) struct Server {
    defect: Defect,
    pool: PgPool,
    shop: Shop,
    lease: Duration,
}

/// What a claim came to.
enum Claim {
    Granted(i64),
    Completed(String),
    Refused(ErrorData),
}

fn refuse(kind: &str, action: &str) -> ErrorData {
    let data = json!({ "type": kind, "outcome": "unknown", "action": action });
    ErrorData::new(ErrorCode::INVALID_PARAMS, kind.to_owned(), Some(data))
}

impl Server {
    /// `None`: this defect is one of a server that uses the library wrongly.
    pub(super) fn with(
        defect: Defect,
        database: &Postgres,
        shop: &Shop,
        settings: &Settings,
    ) -> Option<Self> {
        let by_settings = matches!(defect, Defect::ReleaseOnError | Defect::ScopeIgnored);
        (!by_settings).then(|| Self {
            defect,
            pool: database.pool(database.options(), settings.connections),
            shop: shop.clone(),
            lease: settings.lease,
        })
    }

    async fn claim(
        &self,
        tenant: &str,
        key: &str,
        name: &str,
        is_checked: bool,
    ) -> Result<Claim, sqlx::Error> {
        let lease = self.lease.as_secs_f64();
        let new = sqlx::query(
            "INSERT INTO planted VALUES ($1, $2, $3, 1, clock_timestamp() + $4 * interval '1 second')
             ON CONFLICT DO NOTHING",
        );
        let new = new.bind(tenant).bind(key).bind(name).bind(lease);
        if new.execute(&self.pool).await?.rows_affected() == 1 {
            return Ok(Claim::Granted(1));
        }
        let found = sqlx::query(
            "SELECT arguments, run, token, lease_until < clock_timestamp() AS lapsed
             FROM planted WHERE tenant = $1 AND key = $2",
        );
        let found = found.bind(tenant).bind(key).fetch_one(&self.pool).await?;
        let run: Option<String> = found.get("run");
        if is_checked && found.get::<String, _>("arguments") != name {
            let conflict = refuse("idempotency_key_conflict", "use_new_key");
            return Ok(Claim::Refused(conflict));
        }
        if let Some(run) = run {
            return Ok(Claim::Completed(run));
        }
        let token: i64 = found.get("token");
        let next = token + i64::from(self.defect != Defect::TokenReused);
        let taken = sqlx::query(
            "UPDATE planted SET token = $4, lease_until = clock_timestamp() + $5 * interval '1 second'
             WHERE tenant = $1 AND key = $2 AND token = $3 AND run IS NULL
             AND lease_until < clock_timestamp()",
        );
        let taken = taken
            .bind(tenant)
            .bind(key)
            .bind(token)
            .bind(next)
            .bind(lease);
        let lapsed: bool = found.get("lapsed");
        if lapsed && taken.execute(&self.pool).await?.rows_affected() == 1 {
            return Ok(Claim::Granted(next));
        }
        Ok(Claim::Refused(refuse(
            "idempotency_key_in_progress",
            "wait",
        )))
    }

    /// Waits while another runs the call.
    async fn claim_or_wait(
        &self,
        tenant: &str,
        key: &str,
        name: &str,
    ) -> Result<Claim, sqlx::Error> {
        let mut is_checked = true;
        if self.defect == Defect::ConflictUnchecked {
            let running =
                "SELECT count(*) FROM planted WHERE tenant = $1 AND key = $2 AND run IS NULL";
            let running = sqlx::query_scalar(running).bind(tenant).bind(key);
            let running: i64 = running.fetch_one(&self.pool).await?;
            is_checked = running == 0;
        }
        loop {
            let claim = self.claim(tenant, key, name, is_checked).await?;
            let waits =
                matches!(&claim, Claim::Refused(refusal) if refusal.message.ends_with("progress"));
            if !waits {
                return Ok(claim);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tool_router]
impl Server {
    /// Effect and record commit together, guarded by the token.
    #[tool]
    async fn act(
        &self,
        Parameters(order): Parameters<Order>,
        meta: RequestMetaObject,
    ) -> Result<Json<Receipt>, ErrorData> {
        let tenant = word(&meta, TENANT).unwrap_or_default();
        let key = word(&meta, wire::KEY).unwrap_or_default();
        let claim = self.claim_or_wait(tenant, key, &order.name).await;
        let token = match claim.map_err(internal)? {
            Claim::Granted(token) => token,
            Claim::Completed(run) => return Ok(self.shop.receipt(order, run)),
            Claim::Refused(refusal) => return Err(refusal),
        };
        let (what, run) = self.shop.begin(&meta, &order);
        self.shop.reach(Point::BeforeEffect, &meta, &what).await;
        // Time in which others find it in progress.
        if self.defect == Defect::ConflictUnchecked {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let mut transaction = self.pool.begin().await.map_err(internal)?;
        let written = effect::<Postgres>(&mut transaction, &format!("{what}/{run}")).await;
        written.map_err(internal)?;
        if self.defect == Defect::RecordAfterCommit {
            transaction.commit().await.map_err(internal)?;
            transaction = self.pool.begin().await.map_err(internal)?;
        }
        self.shop.reach(Point::AfterEffect, &meta, &what).await;
        let completed = sqlx::query(
            "UPDATE planted SET run = $4 WHERE tenant = $1 AND key = $2 AND token = $3",
        );
        let completed = completed.bind(tenant).bind(key).bind(token).bind(&run);
        let completed = completed.execute(&mut *transaction).await;
        if completed.map_err(internal)?.rows_affected() == 0 {
            return Err(refuse("fenced", "retry_same_key"));
        }
        transaction.commit().await.map_err(internal)?;
        Ok(self.shop.receipt(order, run))
    }
}

#[tool_handler]
impl ServerHandler for Server {
    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        answer(self, Self::tool_router(), &self.shop, params, context).await
    }
}
