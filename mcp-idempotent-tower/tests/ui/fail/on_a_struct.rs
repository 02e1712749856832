use mcp_idempotent_tower::idempotent;

#[idempotent]
pub struct Server;

fn main() {}
