// The official Anthropic client for Node. Run by test_node_sdks.py, which sets PACKAGES, MLXCEL_URL and MLXCEL_API_KEY.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(process.env.PACKAGES + "/");
const { default: Anthropic } = require("@anthropic-ai/sdk");

const ANSWER = "The river runs past the old mill.";
const RESULT = "It is warm and clear.";
const settings = { baseURL: process.env.MLXCEL_URL, maxRetries: 0 };
const client = new Anthropic({ ...settings, apiKey: process.env.MLXCEL_API_KEY });
const bearer = new Anthropic({ ...settings, apiKey: null, authToken: process.env.MLXCEL_API_KEY });
const stranger = new Anthropic({ ...settings, apiKey: "wrong" });

const tools = [{ name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
const hello = [{ role: "user", content: "Hello" }];
const ask = { role: "user", content: "What is the weather in Paris today?" };
const base = { model: "any", max_tokens: 200 };

async function create(stream, body) {
  if (!stream) return client.messages.create({ ...base, ...body });
  return client.messages.stream({ ...base, ...body }).finalMessage();
}

for (const stream of [false, true]) {
  const how = stream ? "streamed" : "whole";

  test(`an answer, ${how}`, async () => {
    const message = await create(stream, { messages: hello, system: "Be brief." });
    assert.deepEqual(message.content.map((block) => block.text), [ANSWER]);
    assert.equal(message.stop_reason, "end_turn");
    const counted = await client.messages.countTokens({ model: "any", messages: hello, system: "Be brief." });
    assert.equal(message.usage.input_tokens + message.usage.cache_read_input_tokens, counted.input_tokens);
  });

  test(`tools, ${how}`, async () => {
    const first = await create(stream, { messages: [ask], tools });
    assert.equal(first.stop_reason, "tool_use");
    const call = first.content.find((block) => block.type === "tool_use");
    assert.deepEqual(call.input, { city: "Paris" });
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: RESULT }] };
    const turns = [ask, { role: "assistant", content: first.content }, result];
    const second = await create(stream, { messages: turns, tools });
    assert.equal(second.content.at(-1).text, ANSWER);
  });

  test(`thinking, ${how}`, async () => {
    const messages = [{ role: "user", content: "Think first." }];
    const first = await create(stream, { messages, thinking: { type: "enabled", budget_tokens: 1024 }, max_tokens: 2048 });
    assert.deepEqual(first.content.map((block) => block.type), ["thinking", "text"]);
    assert.equal(first.content[0].thinking.trim(), "It runs.");
    assert.ok(first.content[0].signature);
    const more = [...messages, { role: "assistant", content: first.content }, ...hello];
    assert.equal((await create(stream, { messages: more })).content.at(-1).text, ANSWER);
  });

  test(`refusals, ${how}`, async () => {
    await assert.rejects(client.messages.create({ ...base, messages: [], stream }), Anthropic.BadRequestError);
    const body = { ...base, messages: hello, temperature: -1, stream };
    await assert.rejects(client.messages.create(body), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      return error.error.error.type === "invalid_request_error";
    });
    await assert.rejects(stranger.messages.create({ ...base, messages: hello, stream }), Anthropic.AuthenticationError);
  });
}

test("the key as a bearer token", async () => {
  const message = await bearer.messages.create({ ...base, messages: hello });
  assert.equal(message.content[0].text, ANSWER);
});

test("a stream that is left ends, and the server goes on", async () => {
  const stream = await client.messages.create({ ...base, messages: hello, stream: true });
  for await (const event of stream) {
    if (event.type === "content_block_delta") break; // which closes the connection
  }
  assert.equal((await create(false, { messages: hello })).content[0].text, ANSWER);
});
