"""Python: mcp-use. It sends no `_meta`, so the key goes into the argument that the tool has for it."""

import os
from contextlib import asynccontextmanager
from datetime import timedelta

os.environ["MCP_USE_ANONYMIZED_TELEMETRY"] = "false"

from mcp_use import MCPClient  # noqa: E402 - reads the variable when imported

import driver  # noqa: E402


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = {"command": command, "args": args}
        else:
            server = {"url": spec["http"]}
        client = MCPClient.from_dict({"mcpServers": {"server": server}})
        session = await client.create_session("server")
        session.timeout = timedelta(milliseconds=spec.get("timeoutMs", 30_000))
        try:
            yield session
        finally:
            await client.close_all_sessions()

    async def call(self, session, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        if key:
            arguments = {**arguments, "idempotency_key": key}
        answer = await session.call_tool(tool, arguments, session.timeout)
        # end
        return driver.result(answer)

    async def status(self, session, spec):
        return await driver.status(session.connector.client_session, spec)


driver.serve(Client())
