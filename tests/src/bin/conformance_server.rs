//! A server for the official conformance suite: `conformance-server bare | layer`.

use mcp_idempotent_tests::conformance;

#[tokio::main]
async fn main() {
    let wrapping = std::env::args().nth(1).unwrap_or_default();
    conformance::serve(&wrapping).await;
}
