// TypeScript: @modelcontextprotocol/client 2.x.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { result, serve } from "./driver.mjs";

serve({
  async connect({ stdio, http, timeoutMs, revision }) {
    const mode = revision === "2026-07-28" ? { pin: revision } : "legacy";
    const client = new Client({ name: "interop", version: "1" }, { versionNegotiation: { mode } });
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
    const answer = await client.callTool(params, { signal, timeout: client.timeout });
    // end
    return result(answer);
  },

  async close(client) {
    await client.close();
  },
});
