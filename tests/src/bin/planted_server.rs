//! A server with a planted flaw, for tests of `mcp-idempotent check`: `planted-server FLAW FILE [http]`. Over HTTP it
//! prints its URL.

use mcp_idempotent_tests::planted;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    planted::serve(&arguments).await;
}
