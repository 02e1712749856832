//! The program `mcp-idempotent` in front of servers that nobody touched.

mod durable;
mod faults;
mod http;
pub(crate) mod program;
mod servers;
mod streams;
mod whole;
