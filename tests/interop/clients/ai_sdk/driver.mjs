// TypeScript: @ai-sdk/mcp. It sends no `_meta`, so the key goes into the argument that the tool has for it.

import { createMCPClient, ElicitationRequestSchema } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport as Stdio } from "@ai-sdk/mcp/mcp-stdio";

import { result, serve } from "./driver.mjs";

serve({
  async connect({ stdio, http, timeoutMs, retries, revision, agrees }) {
    const client = await createMCPClient({
      maxRetries: retries ?? 0,
      protocolVersionDiscovery: revision !== "2025-11-25",
      capabilities: agrees ? { elicitation: { form: {} } } : {},
      transport: stdio
        ? new Stdio({ command: stdio[0], args: stdio.slice(1) })
        : { type: "http", url: http },
    });
    if (agrees) {
      const agreed = { action: "accept", content: { agreed: true } };
      client.onElicitationRequest(ElicitationRequestSchema, async () => agreed);
    }
    return { client, timeoutMs };
  },

  async call({ client, timeoutMs }, { tool, arguments: args, key, signal }) {
    const options = { signal, timeout: timeoutMs };
    // key
    if (key) args = { ...args, idempotency_key: key };
    const answer = await client.callTool({ name: tool, arguments: args, options });
    // end
    return result(answer);
  },

  async close({ client }) {
    await client.close();
  },
});
