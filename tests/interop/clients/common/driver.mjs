// The part that all JavaScript drivers share. driver.py says what a driver is, and what is said to it.

import { createInterface } from "node:readline";

/** What a caller of the library can learn from an error. */
export function described(error) {
  const inner = error?.cause?.code !== undefined && error.code === undefined ? error.cause : error;
  return {
    type: error?.constructor?.name ?? typeof error,
    message: String(error?.message ?? error),
    code: inner?.code,
    data: inner?.data,
  };
}

/** An MCP result as a caller sees it. */
export function result(value) {
  return {
    text: (value.content ?? []).filter((block) => block.type === "text").map((block) => block.text),
    structured: value.structuredContent ?? null,
    meta: value._meta ?? null,
    isError: value.isError === true,
  };
}

export function serve(client) {
  const connections = new Map();

  async function carryOut(command) {
    if (command.do === "connect") {
      connections.set(command.on, await client.connect(command));
      return {};
    }
    const connection = connections.get(command.on);
    if (command.do === "close") {
      connections.delete(command.on);
      await Promise.race([client.close(connection), new Promise((resolve) => setTimeout(resolve, 5000))]);
      return {};
    }
    if (command.cancelAfterMs === undefined) return client[command.do](connection, command);
    const controller = new AbortController();
    const timer = setTimeout(() => controller.abort(), command.cancelAfterMs);
    try {
      return await client[command.do](connection, { ...command, signal: controller.signal });
    } finally {
      clearTimeout(timer);
    }
  }

  createInterface({ input: process.stdin })
    .on("line", async (line) => {
      const command = JSON.parse(line);
      let said;
      try {
        said = { ok: (await carryOut(command)) ?? {} };
      } catch (error) {
        said = { error: described(error) };
      }
      process.stdout.write(`${JSON.stringify({ id: command.id, ...said })}\n`);
    })
    .on("close", () => process.exit(0));
  // A connection that breaks must not end the driver: the runner breaks some on purpose.
  process.on("uncaughtException", (error) => console.error(error));
  process.on("unhandledRejection", (error) => console.error(error));
}
