//! End-to-end, crash and interop tests of mcp-idempotent.
