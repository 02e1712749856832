// TypeScript: @modelcontextprotocol/sdk 1.x.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResultSchema } from "@modelcontextprotocol/sdk/types.js";

import { result, serve } from "./driver.mjs";

serve({
  async connect({ stdio, http, timeoutMs }) {
    const client = new Client({ name: "interop", version: "1" });
    client.timeout = timeoutMs;
    await client.connect(
      stdio
        ? new StdioClientTransport({ command: stdio[0], args: stdio.slice(1) })
        : new StreamableHTTPClientTransport(new URL(http)),
    );
    return client;
  },

  async call(client, { tool, arguments: args, key, signal }) {
    const params = { name: tool, arguments: args };
    // key
    if (key) params._meta = { "idempotency-key": key };
    const answer = await client.callTool(params, undefined, { signal, timeout: client.timeout });
    // end
    return result(answer);
  },

  async status(client, { key, tool, arguments: args }) {
    const method = "io.github.mcp-idempotent/status";
    return await client.request({ method, params: { key, tool, arguments: args } }, ResultSchema);
  },

  async close(client) {
    await client.close();
  },
});
