//! A server whose handlers know nothing of idempotency, and the layer that protects it: one call,
//! one ticket, however often the call is repeated.
//!
//! ```text
//! cargo run --example hello_layer             # speaks MCP over stdio
//! ```

use std::{
    error::Error,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use mcp_idempotent_tower::{
    Idempotency, MemoryStore, OnError, ServerExt as _,
    layer::{IdempotencyLayer, Rule},
};
use rmcp::{ServiceExt as _, tool, tool_router, transport::stdio};

/// An ordinary rmcp server.
#[derive(Default)]
struct TicketMachine {
    drawn: AtomicU64,
}

#[tool_router(server_handler)]
impl TicketMachine {
    /// Draw a ticket.
    #[tool]
    async fn draw_ticket(&self) -> String {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed) + 1;
        format!("ticket {number}")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // In memory: the records are gone when the process ends, and so are the tickets.
    let idempotency = Idempotency::for_stdio("tickets", MemoryStore::new())?;

    // Calls that carry a key are protected. If a handler fails or crashes, a retry is told that the
    // outcome is unknown; it does not run again.
    let layer = IdempotencyLayer::new(idempotency.clone(), Rule::lease(OnError::InDoubt))?;
    let server = TicketMachine::default().idempotent(layer);

    server.serve(stdio()).await?.waiting().await?;
    // A call outlives its client. Give it time to finish.
    idempotency.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
