// The official OpenAI client for Node. Run by test_node_sdks.py, which sets PACKAGES, MLXCEL_URL and MLXCEL_API_KEY.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { test } from "node:test";

const require = createRequire(process.env.PACKAGES + "/");
const { default: OpenAI } = require("openai");

const ANSWER = "The river runs past the old mill.";
const RESULT = "It is warm and clear.";
const client = new OpenAI({ baseURL: process.env.MLXCEL_URL + "/v1", apiKey: process.env.MLXCEL_API_KEY, maxRetries: 0 });
const stranger = new OpenAI({ baseURL: process.env.MLXCEL_URL + "/v1", apiKey: "wrong", maxRetries: 0 });

const parameters = { type: "object", properties: { city: { type: "string" } } };
const chatTools = [{ type: "function", function: { name: "get_weather", parameters } }];
const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
const hello = [{ role: "user", content: "Hello" }];
const ask = { role: "user", content: "What is the weather in Paris today?" };

async function chat(stream, body) {
  if (!stream) return client.chat.completions.create({ model: "any", ...body });
  const events = client.chat.completions.stream({ model: "any", stream_options: { include_usage: true }, ...body });
  return events.finalChatCompletion();
}

async function respond(stream, body) {
  if (!stream) return client.responses.create({ model: "any", ...body });
  const numbers = [];
  const events = client.responses.stream({ model: "any", ...body });
  events.on("event", (event) => numbers.push(event.sequence_number));
  const response = await events.finalResponse();
  assert.deepEqual(numbers, numbers.map((_, index) => index));
  return response;
}

for (const stream of [false, true]) {
  const how = stream ? "streamed" : "whole";

  test(`chat, ${how}`, async () => {
    const completion = await chat(stream, { messages: hello });
    assert.equal(completion.choices[0].message.content, ANSWER);
    assert.equal(completion.choices[0].finish_reason, "stop");
    assert.ok(completion.usage.prompt_tokens > 0);
  });

  test(`chat with tools, ${how}`, async () => {
    const first = await chat(stream, { messages: [ask], tools: chatTools });
    const { message, finish_reason } = first.choices[0];
    assert.equal(finish_reason, "tool_calls");
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: "Paris" });
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: RESULT };
    const second = await chat(stream, { messages: [ask, message, result], tools: chatTools });
    assert.equal(second.choices[0].message.content, ANSWER);
  });

  test(`responses, ${how}`, async () => {
    const response = await respond(stream, { input: "Hello", instructions: "Be brief." });
    assert.equal(response.output_text, ANSWER);
    assert.equal(response.status, "completed");
    assert.equal(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens);
  });

  test(`responses with tools, ${how}`, async () => {
    const first = await respond(stream, { input: [ask], tools });
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
    const result = { type: "function_call_output", call_id: call.call_id, output: RESULT };
    const linked = await respond(stream, { previous_response_id: first.id, input: [result], tools });
    assert.equal(linked.output_text, ANSWER);
    const replayed = await respond(stream, { input: [ask, ...first.output, result], tools, store: false });
    assert.equal(replayed.output_text, ANSWER);
  });

  test(`refusals, ${how}`, async () => {
    const body = { model: "any", messages: hello, temperature: -1, stream };
    await assert.rejects(client.chat.completions.create(body), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      return error.param === "temperature";
    });
    await assert.rejects(client.responses.create({ model: "any", input: "Hi", temperature: -1, stream }), OpenAI.BadRequestError);
    await assert.rejects(stranger.chat.completions.create({ model: "any", messages: hello, stream }), OpenAI.AuthenticationError);
    await assert.rejects(stranger.responses.create({ model: "any", input: "Hi", stream }), OpenAI.AuthenticationError);
  });
}

test("stored responses", async () => {
  const { id } = await client.responses.create({ model: "any", input: "Hello" });
  assert.equal((await client.responses.retrieve(id)).output_text, ANSWER);
  await client.responses.delete(id);
  await assert.rejects(client.responses.retrieve(id), OpenAI.NotFoundError);
});

test("a stream that is left ends, and the server goes on", async () => {
  const stream = await client.responses.create({ model: "any", input: "Hello", stream: true });
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") break; // which closes the connection
  }
  assert.equal((await chat(false, { messages: hello })).choices[0].message.content, ANSWER);
});

test("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.deepEqual(names, ["scripted"]);
});
