//! A shop's server over HTTP, as it would be deployed: several processes behind one address, one
//! Postgres, users with bearer tokens, metrics.
//!
//! [`orders`] is an ordinary rmcp server, and `.idempotent(…)` below is the one line that protects
//! it. [`protection`] says which tool is protected how, whose keys they are and who may have an
//! answer; [`sign_in`] is the authentication layer that it relies on.

pub mod measure;
pub mod options;
pub mod orders;
pub mod protection;
pub mod serve;
pub mod sign_in;

use mcp_idempotent_tower::ServerExt as _;

use self::{options::Options, orders::Orders};
use crate::{
    command_line::{Stop, log_to_stderr},
    payments::postgres,
};

/// What `--help` prints.
pub const USAGE: &str = "\
A shop's MCP server over HTTP, which places each order once. Start it several times on one database:
a retry may arrive at any of them.

Usage: cargo run --example http_postgres -- --store URL --user NAME=TOKEN [OPTIONS]

Options:
  --store postgres://URL  keep orders and idempotency records in this database
  --user NAME=TOKEN       a user, and the bearer token that proves it; once for each user
  --withdrawn NAME        this user may no longer order: also a retry of an order that was placed is
                          refused; once for each such user
  --schema NAME           the schema for the tables, made if absent [default: http_postgres]
  --http ADDRESS:PORT     listen on this loopback address [default: 127.0.0.1:8080];
                          port 0 takes a free one, which is printed
  -h, --help              print this

MCP is at /mcp and wants `Authorization: Bearer TOKEN`; /metrics is for Prometheus and asks nobody.
Ctrl-C stops it after the calls that are running. The log goes to standard error; RUST_LOG says how
much of it [default: warn].
";

/// Serves until Ctrl-C.
///
/// # Errors
///
/// The arguments make no sense, the server cannot start, or calls did not end after Ctrl-C.
pub async fn main(arguments: lexopt::Parser) -> Result<(), Stop> {
    let options = Options::parse(arguments)?;
    log_to_stderr("warn");
    // Before the first call.
    let metrics = measure::install()?;
    let pool = postgres::connect(&options.store, &options.schema).await?;
    let orders = Orders::open(pool.clone(), &options.schema).await?;
    let layer = protection::layer(pool, &options.schema, &options.users).await?;
    let idempotency = layer.idempotency().clone();

    let server = orders.idempotent(layer);

    let app = serve::app(server, &options.users, &metrics);
    serve::serve(app, options.http, &idempotency).await?;
    Ok(())
}
