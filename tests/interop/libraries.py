"""The libraries, in the order of the tables."""

from client import Library

OLD, BOTH = "2025-06-18", ("2025-11-25", "2026-07-28")

LIBRARIES = [
    Library(
        "ts_sdk_1_30",
        "TypeScript `@modelcontextprotocol/sdk` 1.30.0",
        source="common/ts_sdk.mjs",
        can=frozenset({"status"}),
    ),
    Library(
        "ts_sdk_1",
        "TypeScript `@modelcontextprotocol/sdk` 1.32.2",
        source="common/ts_sdk.mjs",
        can=frozenset({"status"}),
    ),
    Library(
        "ts_client_2",
        "TypeScript `@modelcontextprotocol/client` 2.4.0",
        revisions=(OLD, *BOTH),
        can=frozenset({"revisions", "rounds", "status"}),
    ),
    Library("openai_agents_js", "TypeScript `@openai/agents` 0.20.0"),
    Library(
        "ai_sdk",
        "TypeScript `@ai-sdk/mcp` 2.0.99",
        key_in="argument",
        revisions=BOTH,
        can=frozenset({"gateway", "revisions", "rounds"}),
    ),
    Library("mcp_1", "Python `mcp` 1.29.1", can=frozenset({"status"})),
    Library("mcp_2", "Python `mcp` 2.3.0", revisions=BOTH, can=frozenset({"revisions", "rounds", "status"})),
    Library("fastmcp", "Python `fastmcp` 4.2.3", revisions=BOTH, can=frozenset({"revisions", "rounds", "status"})),
    Library("openai_agents", "Python `openai-agents` 0.24.0", can=frozenset({"own_retry", "status"})),
    Library("pydantic_ai", "Python `pydantic-ai` 2.68.0", can=frozenset({"own_retry", "rounds", "status"})),
    Library(
        "langgraph",
        "Python `langgraph` 1.2.11, `langchain-mcp-adapters` 0.3.2",
        key_in="argument",
        can=frozenset({"node", "status"}),
    ),
    Library("mcp_use", "Python `mcp-use` 1.7.1", key_in="argument", can=frozenset({"status"})),
    Library(
        "rmcp",
        "Rust `rmcp` 3.11.0",
        source="../../src/bin/rmcp_driver.rs",
        program="rmcp-driver",
        revisions=(OLD, *BOTH),
        can=frozenset({"revisions", "rounds", "status"}),
    ),
]
