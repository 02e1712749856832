//! Servers that show mcp-idempotent at work, and what the examples share.
//!
//! | Example | Code | What it shows |
//! | --- | --- | --- |
//! | `payments` | [`payments`] | a server with `#[idempotent]` tools on SQLite, Postgres or memory |
//! | `retry_storm` | [`retry_storm`] | what retries do to it, with and without the attribute |

pub mod command_line;
pub mod payments;
pub mod retry_storm;
