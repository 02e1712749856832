"""Python: langgraph with langchain-mcp-adapters. The adapters send no `_meta`, so the key goes into the
argument that the tool has for it."""

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypedDict

from langchain_mcp_adapters.sessions import create_session
from langchain_mcp_adapters.tools import load_mcp_tools
from langgraph.graph import END, START, StateGraph
from langgraph.types import RetryPolicy

import driver


class State(TypedDict):
    answer: dict


class Client:
    @asynccontextmanager
    async def connect(self, spec):
        if "stdio" in spec:
            command, *args = spec["stdio"]
            server = {"transport": "stdio", "command": command, "args": args}
        else:
            server = {"transport": "streamable_http", "url": spec["http"]}
        timeout = timedelta(milliseconds=spec.get("timeoutMs", 30_000))
        server["session_kwargs"] = {"read_timeout_seconds": timeout}
        async with create_session(server) as session:
            await session.initialize()
            tools = {tool.name: tool for tool in await load_mcp_tools(session)}
            yield session, tools

    async def call(self, connection, spec):
        _, tools = connection
        tool, arguments, key = tools[spec["tool"]], spec["arguments"], spec.get("key")
        # key
        if key:
            arguments = {**arguments, "idempotency_key": key}
        call = {"type": "tool_call", "id": "1", "name": tool.name, "args": arguments}
        message = await tool.ainvoke(call)
        # end
        return {
            "text": [block["text"] for block in message.content if block.get("type") == "text"],
            "structured": (message.artifact or {}).get("structured_content"),
            "meta": None,
            "isError": message.status == "error",
        }

    async def status(self, connection, spec):
        session, _ = connection
        return await driver.status(session, spec)

    async def node(self, connection, spec):
        """A node that raises after its call. The graph's retry policy runs the whole node again."""
        raised = False

        async def charge(_: State):
            nonlocal raised
            answer = await self.call(connection, spec)
            if not raised:
                raised = True
                raise ConnectionError("the next step of this node failed")
            return {"answer": answer}

        graph = StateGraph(State)
        graph.add_node("charge", charge, retry_policy=RetryPolicy(initial_interval=0.05, jitter=False))
        graph.add_edge(START, "charge")
        graph.add_edge("charge", END)
        return (await graph.compile().ainvoke({}))["answer"]


driver.serve(Client())
