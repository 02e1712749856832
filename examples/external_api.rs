//! What becomes of a payment at a payment API that fails, and of a server that dies around the call
//! to it: a fake API counts what it was sent and what it did. The code is in `src/external_api/`.
//!
//! ```text
//! cargo run --example external_api
//! ```

use std::process::ExitCode;

use mcp_idempotent_examples::{command_line, external_api, payments, process};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    // The servers that it starts are this program again.
    if arguments
        .next_if(|first| first == process::SERVE_PAYMENTS)
        .is_some()
    {
        return command_line::run(arguments, payments::USAGE, payments::main);
    }
    command_line::run(arguments, external_api::USAGE, external_api::main)
}
