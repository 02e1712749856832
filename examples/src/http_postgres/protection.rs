//! What is done so that a retried call runs once: rules, whose keys they are, who gets an answer.

use std::{future, sync::Arc};

use anyhow::Context as _;
use mcp_idempotent_tower::{
    Denied, Idempotency, IdempotencyLayer, OnError, PostgresStore, Scope, layer::Rule,
};
use rmcp::{RoleServer, service::RequestContext};
use sqlx::PgPool;

use super::sign_in::{User, Users};

/// The layer for [`Orders`](super::orders::Orders), and the table that it keeps its records in.
///
/// # Errors
///
/// The table cannot be made.
pub async fn layer(
    pool: PgPool,
    schema: &str,
    users: &Arc<Users>,
) -> anyhow::Result<IdempotencyLayer<PostgresStore>> {
    let store = PostgresStore::builder(pool).with_schema(schema).build()?;
    store
        .migrate()
        .await
        .context("cannot make the table of idempotency records")?;
    let users = Arc::clone(users);
    let idempotency = Idempotency::builder("shop", store)
        .with_scope_from_http(whose_key)
        .with_authorize(move |context, _tool| Box::pin(future::ready(may_call(&users, context))))
        .build()?;
    // Any tool: its effect is outside this database, and an error does not prove that there is none.
    let layer = IdempotencyLayer::builder(idempotency, Rule::lease(OnError::InDoubt))
        // This one: its order and the record commit together. A model can send the key itself.
        .with_tool(
            "place_order",
            Rule::transaction().with_key_argument("idempotency_key"),
        )
        .build()?;
    Ok(layer)
}

/// Equal keys of two users are two keys.
fn whose_key(parts: &http::request::Parts) -> Result<Scope, Denied> {
    match User::of(parts) {
        Some(user) => Ok(Scope::new(user.name())),
        None => Err(Denied::new("Sign in first.")),
    }
}

/// Asked before every call and before every replay: a user who was let go gets no old result either.
fn may_call(users: &Users, context: &RequestContext<RoleServer>) -> Result<(), Denied> {
    let parts = context.extensions.get::<http::request::Parts>();
    match parts.and_then(User::of) {
        Some(user) if users.is_withdrawn(user) => Err(Denied::new(format!(
            "{} may no longer use this shop.",
            user.name()
        ))),
        Some(_) => Ok(()),
        None => Err(Denied::new("Sign in first.")),
    }
}
