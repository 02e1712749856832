//! A server for tests of several processes; speaks MCP over stdin and stdout.

use mcp_idempotent_tests::{ledger, outside};

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments {
        [kind, settings] if kind == outside::SERVE => outside::serve(settings).await,
        _ => ledger::serve(&arguments).await,
    }
}
