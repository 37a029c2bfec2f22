"""System turns wherever agents put them, on every surface, for models whose templates refuse them there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mlxcel.testing.app import LiveServer, scripted_source

Live = Callable[..., LiveServer]

NO_SYSTEM = """\
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {{- '<' + message.role + '>' + message.content + '</>' }}
{%- endfor %}{{ '<assistant>' if add_generation_prompt }}"""
SYSTEM_FIRST = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}{{ raise_exception('system must be first') }}{% endif %}
    {{- '<' + message.role + '>' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{{ '</>' }}
{%- endfor %}{{ '<assistant>' if add_generation_prompt }}"""

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TEXTS = ("rules", "more rules", "the task", "a reminder", "file text", "another reminder")


def chat() -> tuple[str, dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    function = {"name": "read", "parameters": SCHEMA}
    messages = [
        {"role": "system", "content": "rules"},
        {"role": "developer", "content": "more rules"},
        {"role": "user", "content": "the task"},
        {"role": "developer", "content": "a reminder"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "file text"},
        {"role": "system", "content": "another reminder"},
    ]
    return "/v1/chat/completions", {"messages": messages, "tools": [{"type": "function", "function": function}]}


def responses() -> tuple[str, dict[str, Any]]:
    items = [
        {"role": "developer", "content": "more rules"},
        {"role": "user", "content": "the task"},
        {"role": "developer", "content": "a reminder"},
        {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": '{"path": "a"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "file text"},
        {"role": "system", "content": "another reminder"},
    ]
    tool = {"type": "function", "name": "read", "parameters": SCHEMA}
    return "/v1/responses", {"model": "m", "instructions": "rules", "input": items, "tools": [tool]}


def messages() -> tuple[str, dict[str, Any]]:
    turns = [
        {"role": "system", "content": "more rules"},
        {"role": "user", "content": "the task"},
        {"role": "system", "content": "a reminder"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "file text"}]},
        {"role": "system", "content": "another reminder"},
    ]
    tool = {"name": "read", "input_schema": SCHEMA}
    return "/v1/messages", {"model": "m", "max_tokens": 8, "system": "rules", "messages": turns, "tools": [tool]}


@pytest.mark.parametrize("template", [NO_SYSTEM, SYSTEM_FIRST], ids=["no system role", "system first"])
@pytest.mark.parametrize("request_of", [chat, responses, messages])
def test_system_turns_in_mid_conversation_are_served(
    live: Live, tmp_path: Path, template: str, request_of: Callable[[], tuple[str, dict[str, Any]]]
) -> None:
    prompts: list[str] = []

    def say(prompt: str) -> str:
        prompts.append(prompt)
        return "Done."

    server = live(scripted_source(say, tmp_path, chat_template=template))
    path, body = request_of()
    reply = httpx2.post(server.url + path, json=body)
    assert reply.status_code == 200, reply.text
    places = [prompts[0].index(text) for text in TEXTS]
    assert places == sorted(places)
    assert prompts[0].count("<system>") == (1 if template == SYSTEM_FIRST else 0)
