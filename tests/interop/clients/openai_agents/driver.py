"""Python: openai-agents. It calls tools through its own MCP servers, as an agent of it would."""

from contextlib import asynccontextmanager

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

import driver


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        options = {
            "client_session_timeout_seconds": spec.get("timeoutMs", 30_000) / 1000,
            "max_retry_attempts": spec.get("retries", 0),
            "retry_backoff_seconds_base": 0.1,
        }
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = MCPServerStdio({"command": command, "args": args}, **options)
        else:
            server = MCPServerStreamableHttp({"url": spec["http"]}, **options)
        async with server:
            yield server

    async def call(self, server, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        meta = {"idempotency-key": key} if key else None
        answer = await server.call_tool(tool, arguments, meta=meta)
        # end
        return driver.result(answer)

    async def status(self, server, spec):
        return await driver.status(server.session, spec)

    async def own_retry(self, server, spec):
        return await self.call(server, spec)


driver.serve(Client())
