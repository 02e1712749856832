"""Python: mcp 1.x."""

from contextlib import asynccontextmanager
from datetime import timedelta

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

import driver


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            transport = stdio_client(StdioServerParameters(command=command, args=args))
        else:
            transport = streamable_http_client(spec["http"])
        timeout = timedelta(milliseconds=spec.get("timeoutMs", 30_000))
        async with transport as streams, ClientSession(*streams[:2], timeout) as session:
            await session.initialize()
            yield session

    async def call(self, session, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        meta = {"idempotency-key": key} if key else None
        answer = await session.call_tool(tool, arguments, meta=meta)
        # end
        return driver.result(answer)

    async def status(self, session, spec):
        return await driver.status(session, spec)


driver.serve(Client())
