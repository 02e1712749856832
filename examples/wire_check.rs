//! Checks the rules of docs/wire.md on any server, in any language. The code is in `src/wire_check/`; start
//! reading at `rules.rs`.
//!
//! ```text
//! cargo run --example wire_check -- --help
//! ```

use std::process::ExitCode;

use mcp_idempotent_examples::{command_line, wire_check};

fn main() -> ExitCode {
    command_line::run(
        std::env::args_os().skip(1),
        wire_check::USAGE,
        wire_check::main,
    )
}
