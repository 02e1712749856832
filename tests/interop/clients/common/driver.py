"""The part that all Python drivers share.

A driver connects its library to servers, and calls tools with it, as the runner says. It reads commands
from standard input and answers on standard output, each a line of JSON:

    {"id": 1, "do": "connect", "on": "a", "stdio": ["program", "argument"]}   or "http": "http://…/mcp"
    {"id": 2, "do": "call", "on": "a", "tool": "t", "arguments": {}, "key": "k", "cancelAfterMs": 200}
    {"id": 3, "do": "close", "on": "a"}

"revision" in a connect is the revision to speak, and "agrees" that the user agrees to whatever is asked.
Anything else in "do" is a function of the client's own, such as "node". An answer is
{"id": 2, "ok": {…}} or {"id": 2, "error": {"type": …, "message": …, "code": …, "data": …}}.
"""

import asyncio
import json
import os
import sys
from typing import Any


class Connection:
    """A connection that lives in a task of its own: many libraries demand that the task which opens one
    also closes it."""

    def __init__(self, opened):
        self._opened = opened
        self._ready = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self.session = None
        self._task = asyncio.create_task(self._run())

    async def _run(self):
        try:
            async with self._opened as session:
                self.session = session
                self._ready.set_result(None)
                await self._closing.wait()
        except BaseException as error:  # noqa: BLE001 - reported to the caller
            if not self._ready.done():
                self._ready.set_exception(error)

    async def ready(self):
        await self._ready
        return self

    async def close(self):
        self._closing.set()
        done, _ = await asyncio.wait([self._task], timeout=10)
        if not done:
            self._task.cancel()


def leaf(error):
    """The first error in nested groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def described(error):
    """What a caller of the library can learn from an exception."""
    error = leaf(error)
    protocol = error
    for _ in range(5):
        if getattr(protocol, "error", None) is not None or hasattr(protocol, "code"):
            break
        protocol = protocol.__cause__ or protocol.__context__ or protocol
    inner = getattr(protocol, "error", None) or protocol
    return {
        "type": type(error).__name__,
        "message": str(error),
        "code": getattr(inner, "code", None),
        "data": getattr(inner, "data", None),
    }


def result(value):
    """An MCP result as a caller sees it, whichever names the library gives its members."""
    first = lambda *names: next((getattr(value, name) for name in names if hasattr(value, name)), None)
    return {
        "text": [block.text for block in value.content if getattr(block, "type", "") == "text"],
        "structured": first("structured_content", "structuredContent"),
        "meta": first("meta"),
        "isError": bool(first("is_error", "isError")),
    }


async def status(session, spec):
    """What became of a call: a request that the library does not know, through a `ClientSession` of `mcp`."""
    from mcp import types
    from pydantic import BaseModel, ConfigDict

    class Request(types.Request[dict[str, Any], str]):
        method: str = "io.github.mcp-idempotent/status"
        params: dict[str, Any]

    class Status(BaseModel):
        model_config = ConfigDict(extra="allow")

    asked = {name: spec[name] for name in ("key", "tool", "arguments") if name in spec}
    return (await session.send_request(Request(params=asked), Status)).model_dump()


async def _serve(client):
    connections = {}

    async def carry_out(command):
        do, name = command["do"], command.get("on")
        if do == "connect":
            connections[name] = await Connection(client.connect(command)).ready()
            return {}
        connection = connections[name]
        if do == "close":
            await connections.pop(name).close()
            return {}
        work = getattr(client, do)(connection.session, command)
        after = command.get("cancelAfterMs")
        if after is None:
            return await work
        task = asyncio.create_task(work)
        await asyncio.wait([task], timeout=after / 1000)
        task.cancel()
        return await task

    async def answer(command):
        try:
            said = {"ok": await carry_out(command)}
        except asyncio.CancelledError:
            said = {"error": {"type": "CancelledError", "message": "cancelled by the caller"}}
        except BaseException as error:  # noqa: BLE001 - all are told to the runner
            said = {"error": described(error)}
        out.write(json.dumps({"id": command["id"], **said}, default=str) + "\n")
        out.flush()

    loop, running = asyncio.get_running_loop(), set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        task = asyncio.create_task(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    os._exit(0)


# The runner reads this; a library that prints must not disturb it.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def serve(client):
    asyncio.run(_serve(client))
