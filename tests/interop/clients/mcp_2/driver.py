"""Python: mcp 2.x."""

from contextlib import asynccontextmanager

from mcp import Client as McpClient
from mcp.client.stdio import StdioServerParameters

from mcp_types import ElicitResult

import driver


async def agree(context, params):
    return ElicitResult(action="accept", content={"agreed": True})


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
        agrees = agree if spec.get("agrees") else None
        async with McpClient(
            server, mode=mode, read_timeout_seconds=timeout, elicitation_callback=agrees
        ) as client:
            yield client

    async def call(self, client, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        meta = {"idempotency-key": key} if key else None
        answer = await client.call_tool(tool, arguments, meta=meta)
        # end
        return driver.result(answer)

    async def status(self, client, spec):
        return await driver.status(client.session, spec)


driver.serve(Client())
