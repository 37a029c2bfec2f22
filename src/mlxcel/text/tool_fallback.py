"""Tools for chat templates that know none: the declarations go into the prompt as text, and earlier calls into the turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from mlxcel.core.chat import Message, Part, TextPart, ToolCall, ToolSpec
from mlxcel.text.template_messages import place_instruction

_INTRODUCTION = (
    "You can call functions. To call one, answer with a JSON object between <tool_call> and </tool_call>, for example:\n"
    '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>\n'
    "The results come back between <tool_response> and </tool_response>. The functions are:"
)


def write_out_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    """The conversation with its tools, calls and results as plain text, for a template that would drop them.

    The declarations go onto the first system message, else onto the last user message; without tools only earlier calls
    and results change.
    """
    plain = tuple(_plain(message) for message in messages)
    if not tools:
        return plain
    declared = "\n".join(json.dumps(_declaration(tool), ensure_ascii=False) for tool in tools)
    return place_instruction(plain, f"{_INTRODUCTION}\n{declared}")


def _declaration(tool: ToolSpec) -> dict[str, object]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": dict(tool.parameters)}


def _plain(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", _wrapped(message.parts, "<tool_response>\n", "\n</tool_response>"))
    if not message.tool_calls:
        return message
    calls = "\n".join(_call(call) for call in message.tool_calls)
    lead = "\n" if message.text else ""
    return replace(message, parts=(*message.parts, TextPart(lead + calls)), tool_calls=())


def _call(call: ToolCall) -> str:
    name = json.dumps(call.name, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.arguments.strip() or "{}"}}}\n</tool_call>'


def _wrapped(parts: Sequence[Part], before: str, after: str) -> tuple[Part, ...]:
    return (TextPart(before), *parts, TextPart(after))
