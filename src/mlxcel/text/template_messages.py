"""Neutral messages as the dictionaries that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxcel.core.chat import Message, TextPart, ToolCall, ToolSpec
from mlxcel.text.template_turns import TurnHabits

Guard = Callable[[str], str]
_OPEN, _CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class TemplateHabits:
    """What one template expects of its input, found out by trial when it is loaded.

    Attributes:
        text_as_string: plain text content is passed as a string; False passes a list of parts.
        takes_parts: content may be a list of parts (media).
        null_content: a turn without text has content none; False passes an empty string.
        arguments_as_text: tool-call arguments are passed as JSON text; False passes objects.
        reasoning_fields: message fields under which earlier thinking is read.
        turns: orders of turns that are accepted.
    """

    text_as_string: bool = True
    takes_parts: bool = False
    null_content: bool = True
    arguments_as_text: bool = False
    reasoning_fields: tuple[str, ...] = ()
    turns: TurnHabits = field(default_factory=TurnHabits)


def place_instruction(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Add an instruction to the first system message, else the last user message, else as a new leading system message."""
    for roles, order in (("system", range(len(messages))), ("user", range(len(messages) - 1, -1, -1))):
        for index in order:
            if messages[index].role == roles:
                extended = _append_text(messages[index], text)
                return (*messages[:index], extended, *messages[index + 1 :])
    return (Message("system", (TextPart(text),)), *messages)


def _append_text(message: Message, text: str) -> Message:
    separator = "\n\n" if message.text else ""
    return replace(message, parts=(*message.parts, TextPart(separator + text)))


def strip_old_thinking(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Remove thinking from assistant turns before the latest user turn that is not a tool result.

    The rolling rule of the Qwen3 family: thinking inside the current chain of tool calls stays.
    """
    latest_user = max((index for index, message in enumerate(messages) if message.role == "user"), default=0)
    return tuple(
        _without_thinking(message) if index < latest_user and message.role == "assistant" else message
        for index, message in enumerate(messages)
    )


def _without_thinking(message: Message) -> Message:
    text = message.text
    if message.reasoning is None and _CLOSE not in text:
        return message
    if _CLOSE not in text:
        return replace(message, reasoning=None)
    kept = TextPart(remove_think_blocks(text))
    return replace(message, reasoning=None, parts=(kept, *message.media))


def remove_think_blocks(text: str) -> str:
    """``text`` without its ``<think>…</think>`` blocks and the blank space after each; a block may lack its opening."""
    kept: list[str] = []
    position = 0
    while (close := text.find(_CLOSE, position)) >= 0:
        opening = text.find(_OPEN, position, close)
        if opening >= 0:
            kept.append(text[position:opening])
        position = close + len(_CLOSE)
        while position < len(text) and text[position].isspace():
            position += 1
    kept.append(text[position:])
    return "".join(kept)


def parse_arguments(arguments: str) -> Any:
    """Tool-call arguments for a template: an object when the text is one, ``{}`` when it says nothing, else the text."""
    text = arguments.strip()
    if text in ("", "null"):
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def template_tools(tools: Sequence[ToolSpec], guard: Guard) -> list[dict[str, Any]]:
    """Tool declarations in the OpenAI shape."""
    declared: list[dict[str, Any]] = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = dict(tool.parameters)
        declared.append({"type": "function", "function": guard_strings(function, guard)})
    return declared


def template_messages(messages: Sequence[Message], habits: TemplateHabits, guard: Guard) -> list[dict[str, Any]]:
    """Messages as dictionaries. Text that the model did not write itself is passed through ``guard``."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_template_message(message, habits, guard, names) for message in messages]


def _template_message(message: Message, habits: TemplateHabits, guard: Guard, names: Mapping[str, str]) -> dict[str, Any]:
    trusted = message.role in ("system", "assistant")
    entry: dict[str, Any] = {"role": message.role, "content": _content(message, habits, None if trusted else guard)}
    name = message.name or names.get(message.tool_call_id or "")
    if name:
        entry["name"] = guard(name)
    if message.tool_call_id is not None:
        entry["tool_call_id"] = guard(message.tool_call_id)
    if message.tool_calls:
        entry["tool_calls"] = [_tool_call(call, habits, guard) for call in message.tool_calls]
    if message.reasoning:
        entry.update(dict.fromkeys(habits.reasoning_fields, message.reasoning))
    return entry


def _content(message: Message, habits: TemplateHabits, guard: Guard | None) -> Any:
    if message.media:
        return _content_parts(message, guard)
    text = message.text
    if not message.parts and message.role == "assistant" and message.tool_calls:
        return None if habits.null_content else ""
    if guard is not None:
        text = guard(text)
    return text if habits.text_as_string else [{"type": "text", "text": text}]


def _content_parts(message: Message, guard: Guard | None) -> list[dict[str, Any]]:
    """Parts in order; neighbouring texts are joined first, so that no control spelling forms across their seam."""
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if not isinstance(part, TextPart):
            parts.append({"type": part.kind})
        elif parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += part.text
        else:
            parts.append({"type": "text", "text": part.text})
    if guard is not None:
        for entry in parts:
            if entry["type"] == "text":
                entry["text"] = guard(entry["text"])
    return parts


def _tool_call(call: ToolCall, habits: TemplateHabits, guard: Guard) -> dict[str, Any]:
    arguments = call.arguments if habits.arguments_as_text else parse_arguments(call.arguments)
    function = {"name": guard(call.name), "arguments": guard_strings(arguments, guard)}
    return {"id": guard(call.id), "type": "function", "function": function}


def guard_strings(value: Any, guard: Guard) -> Any:
    """``value`` with every string in it, keys included, passed through ``guard``."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {guard(str(key)): guard_strings(item, guard) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [guard_strings(item, guard) for item in value]
    return value
