"""Forced tool calls as a Lark grammar, for the call formats that wrap one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxcel.core.chat import ToolSpec
from mlxcel.core.jobs import OutputConstraint
from mlxcel.text.tool_formats.base import JsonCallShape


def tool_call_grammar(
    shape: JsonCallShape, tools: Sequence[ToolSpec], *, named: bool, parallel: bool = True
) -> OutputConstraint:
    """The constraint that an answer consists of calls to ``tools``, written in ``shape``.

    Args:
        tools: the functions that may be called, at least one.
        named: exactly one call; otherwise one or more, as far as ``parallel`` allows.
    """
    return OutputConstraint(
        kind="tool_calls",
        source={
            "open": shape.open,
            "close": shape.close,
            "arguments_key": shape.arguments_key,
            "is_list": shape.is_list,
            "separator": shape.separator,
            "repeats": parallel and not named,
            "tools": [{"name": tool.name, "parameters": dict(tool.parameters)} for tool in tools],
        },
    )


def tool_call_lark(
    source: Mapping[str, Any], literal: Callable[[str], str], json_options: Mapping[str, Any]
) -> str:
    """The Lark text of a "tool_calls" constraint.

    Args:
        source: as :func:`tool_call_grammar` made it, with every ``parameters`` checked already.
        literal: writes a fixed text as a Lark expression; control tokens in it need their own notation.
        json_options: compiler options for the argument schemas.
    """
    lines: list[str] = []
    names: list[str] = []
    for index, tool in enumerate(source["tools"]):
        head = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "{source["arguments_key"]}": '
        schema = {**_object_schema(tool["parameters"]), "x-guidance": json_options}
        lines.append(f"call_{index}: {literal(head)} arguments_{index} {literal('}')}")
        lines.append(f"arguments_{index}: %json {json.dumps(schema)}")
        names.append(f"call_{index}")
    call = " | ".join(names)
    opening, closing = literal(source["open"]), literal(source["close"])
    if source["is_list"]:
        more = f"({literal(', ')} call)*" if source["repeats"] else ""
        start = f"{opening} {literal('[')} call {more} {literal(']')} {closing}"
    elif source["repeats"]:
        start = f"{opening} call {closing} ({literal(source['separator'])} {opening} call {closing})*"
    else:
        start = f"{opening} call {closing}"
    return "\n".join((f"start: {start}", f"call: {call}", *lines))


def _object_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are always an object, also when the declaration does not say so."""
    return {"type": "object", **parameters}
