//! Servers that show mcp-idempotent at work.
