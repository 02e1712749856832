"""Python: fastmcp."""

from contextlib import asynccontextmanager

from fastmcp import Client as FastMcpClient
from fastmcp.client.transports import StdioTransport

import driver


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = StdioTransport(command=command, args=args, keep_alive=False)
        else:
            server = spec["http"]
        async with FastMcpClient(server, timeout=spec.get("timeoutMs", 30_000) / 1000) as client:
            yield client

    async def call(self, client, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        meta = {"idempotency-key": key} if key else None
        answer = await client.call_tool(tool, arguments, meta=meta)
        # end
        return driver.result(answer)


driver.serve(Client())
