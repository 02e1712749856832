//! The program `mcp-idempotent` in front of servers that nobody touched.

mod faults;
mod http;
mod program;
mod servers;
mod whole;
