// TypeScript: @modelcontextprotocol/client 2.x.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

import { result, serve } from "./driver.mjs";

// A schema that every answer fits.
const anything = { "~standard": { version: 1, vendor: "interop", validate: (value) => ({ value }) } };

serve({
  async connect({ stdio, http, timeoutMs, revision, agrees }) {
    const mode = revision === "2026-07-28" ? { pin: revision } : "legacy";
    const options = { versionNegotiation: { mode } };
    if (revision === "2025-06-18") options.supportedProtocolVersions = [revision];
    if (agrees) options.capabilities = { elicitation: { form: {} } };
    const client = new Client({ name: "interop", version: "1" }, options);
    if (agrees) {
      const agreed = { action: "accept", content: { agreed: true } };
      client.setRequestHandler("elicitation/create", async () => agreed);
    }
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

  async status(client, { key, tool, arguments: args }) {
    const method = "io.github.mcp-idempotent/status";
    return await client.request({ method, params: { key, tool, arguments: args } }, anything);
  },

  async close(client) {
    await client.close();
  },
});
