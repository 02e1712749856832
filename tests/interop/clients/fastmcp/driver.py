"""Python: fastmcp."""

from contextlib import asynccontextmanager

from fastmcp import Client as FastMcpClient
from fastmcp.client.transports import StdioTransport

import driver


async def agree(message, response_type, params, context):
    return {"agreed": True}


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = StdioTransport(command=command, args=args, keep_alive=False)
        else:
            server = spec["http"]
        revision = spec.get("revision", "auto")
        async with FastMcpClient(
            server,
            mode="legacy" if revision == "2025-11-25" else revision,
            timeout=spec.get("timeoutMs", 30_000) / 1000,
            elicitation_handler=agree if spec.get("agrees") else None,
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
