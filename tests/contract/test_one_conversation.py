"""One conversation through chat, Responses and Messages: the same prompt, the same cache, and no input that breaks them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel.app import build_app
from mlxcel.config.server import ServerConfig
from mlxcel.testing.app import LiveServer, in_process, scripted_source

Live = Callable[..., LiveServer]

SYSTEM = "You are a helpful assistant. " * 10
QUESTION, THOUGHT, WORDS, MORE = "What is the weather in Paris today?", "I must look.", "Looking.", "And tomorrow?"
ARGUMENTS = '{"city": "Paris", "days": 2}'
RESULT = "It is warm and clear."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def bodies() -> dict[str, dict[str, Any]]:
    """The same agent turn in three dialects."""
    function = {"name": "get_weather", "description": "d", "parameters": SCHEMA}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    chat = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": WORDS, "reasoning_content": THOUGHT, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
        {"role": "assistant", "content": "Warm."},
        {"role": "user", "content": MORE},
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": THOUGHT}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": WORDS, "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call_1", "output": RESULT},
        {"role": "assistant", "content": "Warm."},
        {"role": "user", "content": MORE},
    ]
    blocks: list[dict[str, Any]] = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": THOUGHT, "signature": "s"},
                {"type": "text", "text": WORDS},
                {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris", "days": 2}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": RESULT}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Warm."}]},
        {"role": "user", "content": [{"type": "text", "text": MORE}]},
    ]
    tool = {"name": "get_weather", "description": "d", "input_schema": SCHEMA}
    return {
        "chat": {"messages": chat, "tools": [{"type": "function", "function": function}], "max_tokens": 4},
        "responses": {
            "model": "m",
            "instructions": SYSTEM,
            "input": items,
            "tools": [{"type": "function"} | function],
            "max_output_tokens": 4,
        },
        "messages": {"model": "m", "system": SYSTEM, "messages": blocks, "tools": [tool], "max_tokens": 4},
    }


def cached(name: str, body: dict[str, Any]) -> tuple[int, int]:
    """(prompt tokens, of them cached) in an answer's usage."""
    usage = body["usage"]
    if name == "chat":
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if name == "responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


def test_the_prompt_is_the_same_and_its_cache_is_shared(live: Live, tmp_path: Path) -> None:
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return "Mild and dry."

    server = live(scripted_source(say, tmp_path))
    found = {
        name: cached(name, httpx2.post(server.url + PATHS[name], json=body).raise_for_status().json())
        for name, body in bodies().items()
    }
    assert prompts[0] == prompts[1] == prompts[2]
    assert RESULT in prompts[0]
    assert len({total for total, _ in found.values()}) == 1
    total = found["chat"][0]
    assert found["chat"][1] == 0
    assert found["responses"][1] > total * 0.8
    assert found["messages"][1] > total * 0.8
    counted = httpx2.post(server.url + "/v1/messages/count_tokens", json=bodies()["messages"]).json()["input_tokens"]
    assert counted == total


# ---- input that nobody should send --------------------------------------------------------------------------------

TYPES = [
    *("text", "input_text", "message", "function_call", "function_call_output", "reasoning", "compaction"),
    *("item_reference", "image", "input_image", "tool_use", "tool_result", "thinking", "function", "namespace"),
    *("user", "assistant", "system", "developer", "json_schema", "enabled", "required", "any", "bm90aGluZw"),
]
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**63) | st.floats(-1e9, 1e9) | st.text(max_size=6)
KEYS = st.sampled_from(["type", "role", "content", "text", "name", "id", "source", "output", "encrypted_content", "tools"])
JSON = st.recursive(
    SCALARS | st.sampled_from(TYPES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
MORE_FIELDS = {
    "responses": "tool_choice text reasoning conversation previous_response_id metadata include context_management "
    "top_logprobs max_tool_calls truncation user",
    "messages": "tool_choice thinking stop_sequences output_config output_format metadata temperature top_k",
}


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    children = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    return [place for key, child in children for place in [(value, key), *places(child)]]


@pytest.mark.parametrize("name", MORE_FIELDS)
def test_no_input_is_answered_with_a_server_error(tmp_path: Path, name: str) -> None:
    """Anything may stand anywhere: the answer is a 400 in the surface's own shape, or an ordinary answer."""
    app = build_app(ServerConfig(), scripted_source("ok", tmp_path))
    runner = asyncio.Runner()
    context = in_process(app)
    client = runner.run(context.__aenter__())

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        more = data.draw(st.lists(st.sampled_from(MORE_FIELDS[name].split()), max_size=2, unique=True))
        body = copy.deepcopy(bodies()[name]) | dict.fromkeys(more)
        for _ in range(data.draw(st.integers(1, 3))):
            container, key = data.draw(st.sampled_from(places(body)))
            container[key] = data.draw(JSON)
        reply = runner.run(client.post(PATHS[name], json=body | {"stream": False}))
        assert reply.status_code in (200, 400, 501), reply.text
        if reply.status_code != 200:
            error = reply.json()["error"]
            assert isinstance(error["message"], str)
            assert error["type"] in ("invalid_request_error", "exceed_context_size_error", "not_supported_error")

    try:
        check()
    finally:
        runner.run(context.__aexit__(None, None, None))
        runner.close()
