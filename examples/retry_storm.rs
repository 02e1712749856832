//! What retries do to an MCP tool, with and without `#[idempotent]`: repeats, timeouts and killed
//! servers, driven by a real client over real transports. The code is in `src/retry_storm/`.
//!
//! ```text
//! cargo run --example retry_storm
//! ```

use std::process::ExitCode;

use mcp_idempotent_examples::{command_line, payments, process, retry_storm};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    // The servers that it starts are this program again.
    if arguments
        .next_if(|first| first == process::SERVE_PAYMENTS)
        .is_some()
    {
        return command_line::run(arguments, payments::USAGE, payments::main);
    }
    command_line::run(arguments, retry_storm::USAGE, retry_storm::main)
}
