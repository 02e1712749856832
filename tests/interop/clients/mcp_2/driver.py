"""Python: mcp 2.x."""

from contextlib import asynccontextmanager

from mcp import Client as McpClient
from mcp.client.stdio import StdioServerParameters

import driver


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = StdioServerParameters(command=command, args=args)
        else:
            server = spec["http"]
        mode = "2026-07-28" if spec.get("revision") == "2026-07-28" else "legacy"
        timeout = spec.get("timeoutMs", 30_000) / 1000
        async with McpClient(server, mode=mode, read_timeout_seconds=timeout) as client:
            yield client

    async def call(self, client, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        meta = {"idempotency-key": key} if key else None
        answer = await client.call_tool(tool, arguments, meta=meta)
        # end
        return driver.result(answer)


driver.serve(Client())
