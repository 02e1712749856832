//! An MCP server that charges cards, each of them once. The server is in `src/payments/`; start
//! reading at `src/payments/sqlite.rs`.
//!
//! ```text
//! cargo run --example payments -- --help
//! ```

use std::process::ExitCode;

use mcp_idempotent_examples::{command_line, payments};

fn main() -> ExitCode {
    command_line::run(std::env::args_os().skip(1), payments::USAGE, payments::main)
}
