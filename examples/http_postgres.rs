//! A shop's MCP server for many users and many processes: axum, bearer tokens, Postgres, metrics,
//! and each order placed once. The code is in `src/http_postgres/`; start reading at `mod.rs`.
//!
//! ```text
//! cargo run --example http_postgres -- --help
//! ```

use std::process::ExitCode;

use mcp_idempotent_examples::{command_line, http_postgres};

fn main() -> ExitCode {
    command_line::run(
        std::env::args_os().skip(1),
        http_postgres::USAGE,
        http_postgres::main,
    )
}
