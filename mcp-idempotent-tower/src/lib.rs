//! Idempotent tool calls for MCP servers built with rmcp.
