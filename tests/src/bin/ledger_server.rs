//! A server for tests of several processes; speaks MCP over stdin and stdout.

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    mcp_idempotent_tests::ledger::serve(&arguments).await;
}
