"""Python: pydantic-ai. Its toolset gives a model the result, or raises what the model is told."""

from contextlib import asynccontextmanager

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

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
        timeout = spec.get("timeoutMs", 30_000) / 1000
        agrees = agree if spec.get("agrees") else None
        toolset = MCPToolset(server, read_timeout=timeout, elicitation_handler=agrees)
        async with toolset:
            yield toolset

    async def call(self, toolset, spec):
        tool, arguments, key = spec["tool"], spec["arguments"], spec.get("key")
        # key
        metadata = {"idempotency-key": key} if key else None
        answer = await toolset.direct_call_tool(tool, arguments, metadata=metadata)
        # end
        return {"structured": answer if isinstance(answer, dict) else None, "shown": str(answer)}

    async def status(self, toolset, spec):
        return await driver.status(toolset.client.session, spec)

    async def own_retry(self, toolset, spec):
        """A run of an agent. The library tells the model of a timeout, and asks it to try again; what stands
        in for the model does as it is told."""
        key = spec.get("key")

        def model(messages, _):
            returned = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
            if any(part.outcome == "success" for part in returned):
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart(spec["tool"], spec["arguments"])])

        async def with_key(_, call, name, arguments):
            return await call(name, arguments, metadata={"idempotency-key": key} if key else None)

        toolset.process_tool_call = with_key
        await Agent(FunctionModel(model), toolsets=[toolset], retries=1).run("Charge Ann")
        return {"shown": "done"}


driver.serve(Client())
