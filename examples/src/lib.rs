//! Servers that show mcp-idempotent at work, and what the examples share. `hello_sqlite`,
//! `hello_layer` and `other_drivers` are beside this directory, and share nothing.
//!
//! | Example | Code | What it shows |
//! | --- | --- | --- |
//! | `payments` | [`payments`] | a server with `#[idempotent]` tools on SQLite, Postgres or memory |
//! | `http_postgres` | [`http_postgres`] | a whole server behind the layer: axum, bearer tokens, several processes, metrics |
//! | `external_api` | [`external_api`] | what becomes of a payment at a payment API under each fault |
//! | `retry_storm` | [`retry_storm`] | what retries do to it, with and without the attribute |
//! | `wire_check` | [`wire_check`] | whether a server keeps the rules of `docs/wire.md` |

pub mod command_line;
pub mod database;
pub mod external_api;
pub mod http_postgres;
pub mod payments;
pub mod process;
pub mod retry_storm;
pub mod wire_check;
