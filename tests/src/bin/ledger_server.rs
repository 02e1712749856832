//! A server for tests of several processes; speaks MCP over stdin and stdout.

fn main() {}
