// TypeScript: @openai/agents. It calls tools through its own MCP servers, as an agent of it would.

import { MCPServerStdio, MCPServerStreamableHttp } from "@openai/agents";

import { result, serve } from "./driver.mjs";

serve({
  async connect({ stdio, http, timeoutMs }) {
    const options = timeoutMs ? { timeout: timeoutMs } : {};
    const server = stdio
      ? new MCPServerStdio({ command: stdio[0], args: stdio.slice(1), ...options })
      : new MCPServerStreamableHttp({ url: http, ...options });
    await server.connect();
    return server;
  },

  async call(server, { tool, arguments: args, key, signal }) {
    // key
    const meta = key ? { "idempotency-key": key } : null;
    const answer = await server.callToolResult(tool, args, meta, { signal });
    // end
    return result(answer);
  },

  async close(server) {
    await server.close();
  },
});
