//! A store that talks to its server through a relay.

use mcp_idempotent_core::store::postgres::PostgresStoreBuilder;

use super::database::{self, Database};
pub(super) use super::kit::relay::{Cut, Lie, LieOf, Relay as Proxy};

/// A database, and a store that talks to it through a proxy.
pub(super) async fn proxied(
    connections: u32,
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> (Proxy, Database) {
    let proxy = Proxy::start(&database::options());
    let database = Database::with(
        |options| proxy.options(options),
        |pool| pool.max_connections(connections),
        store,
    )
    .await;
    (proxy, database)
}

/// The same with a store that owns its connections.
pub(super) async fn proxied_own(
    connections: u32,
    store: impl FnOnce(PostgresStoreBuilder) -> PostgresStoreBuilder,
) -> (Proxy, Database) {
    let proxy = Proxy::start(&database::options());
    let database = Database::owning(|options| proxy.options(options), connections, store).await;
    (proxy, database)
}
