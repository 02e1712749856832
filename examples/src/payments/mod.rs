//! A server that charges cards. `charge_card` runs once per idempotency key;
//! `charge_card_unprotected` does the same work as servers do without protection.
//!
//! `server.rs` is the server, whatever keeps its charges: with `sqlite.rs` and `postgres.rs` the charge
//! and its record commit in one transaction, `memory.rs` has no transactions.
//!
//! `send_receipt` and `pay_invoice` act on other systems, which no transaction covers: [`outside`].
//! `charge_card_if_agreed` and `pay_invoice_if_agreed` ask the client's user first.

mod agreed;
pub mod answers;
pub mod charge;
pub mod ledger;
mod memory;
pub mod options;
pub mod outside;
pub mod postgres;
mod serve;
mod server;
mod sqlite;

use mcp_idempotent_tower::MemoryStore;

use self::{
    memory::MemoryBooks,
    options::{Options, Store},
    server::Payments,
};
use crate::command_line::{Stop, log_to_stderr};

/// What `--help` prints.
pub const USAGE: &str = "\
An MCP server that charges cards, each of them once.

Usage: cargo run --example payments -- [OPTIONS]

Options:
  --store sqlite://FILE   keep charges and idempotency records in this file
                          [default: sqlite://payments.db]
  --store postgres://URL  keep them in this database
  --store memory          keep them in memory, without transactions
  --schema NAME           Postgres: the schema for the tables, made if absent [default: payments]
  --http ADDRESS:PORT     serve Streamable HTTP on this loopback address instead of stdio;
                          port 0 takes a free one, which is printed
  --ledger FILE           append a line for each execution of a charge, outside any transaction
  --hold-ms N             hold each charge for N ms after its write, where the call says no hold_ms
  --answer-delay-ms N     hold each answer back for N ms after the work is committed
  --receipt-url URL       where send_receipt posts to, with the header Idempotency-Key
  --payment-url URL       where pay_invoice posts to, with the header Idempotency-Key
  --outside-timeout-ms N  how long the two wait for an answer from there [default: 10000]
  --hold-before-call-ms N hold the two for N ms before they post
  --hold-after-call-ms N  hold the two for N ms when they were answered, before it is recorded
  --lease-ms N            how long a call of the two is honoured when its server has died
                          [default: 120000]
  -h, --help              print this

The log goes to standard error; RUST_LOG says how much of it [default: warn].
";

/// Serves until the client leaves, or until Ctrl-C.
///
/// # Errors
///
/// The arguments make no sense, or the server cannot start.
pub async fn main(arguments: lexopt::Parser) -> Result<(), Stop> {
    let options = Options::parse(arguments)?;
    log_to_stderr("warn");
    let (ledger, outside) = (options.ledger()?, options.outside()?);
    let lease = options.lease;
    match &options.store {
        Store::Sqlite(file) => {
            let (books, store) = sqlite::open(file, lease).await?;
            let server = Payments::new(books, store, lease, ledger, outside)?;
            serve::serve(server, &options).await?;
        }
        Store::Postgres(url) => {
            let (books, store) = postgres::open(url, &options.schema).await?;
            let server = Payments::new(books, store, lease, ledger, outside)?;
            serve::serve(server, &options).await?;
        }
        Store::Memory => {
            let (books, store) = (MemoryBooks::default(), MemoryStore::new());
            let server = Payments::new(books, store, lease, ledger, outside)?;
            serve::serve(server, &options).await?;
        }
    }
    Ok(())
}
