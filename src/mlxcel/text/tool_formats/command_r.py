r"""Cohere's Command family.

R7B and later write a JSON list between ``<|START_ACTION|>`` and ``<|END_ACTION|>``, and frame answers in delimiters that
are dropped. Command R and R+ write ``Action:`` and a fenced list; the plain form is ``Action: NAME\nAction Input: {json}``.
"""

from __future__ import annotations

from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    NotACall,
    Reader,
    Source,
    accept,
    peek,
    read_line,
    skip_space,
)

_START_ACTION, _ACTION, _INPUT, _FENCE = "<|START_ACTION|>", "Action:", "Action Input:", "```"


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    json_calls = JsonCallReader(tools, incremental=False)
    if marker == _START_ACTION:
        yield from json_calls.read(source)
        return
    yield from skip_space(source)
    if (yield from accept(source, _FENCE)):
        yield from accept(source, "json")
        if (yield from json_calls.read(source)):
            yield from skip_space(source)
            yield from accept(source, _FENCE)
    else:
        yield from _read_action_input(source)


def _read_action_input(source: Source) -> Reader[None]:
    name = yield from read_line(source)
    if not name or not name.strip():
        yield NotACall()
        return
    yield from skip_space(source)
    if not (yield from accept(source, _INPUT)):
        yield NotACall()
        return
    yield from skip_space(source)
    if (yield from peek(source, 1)) != "{":
        yield NotACall()
        return
    arguments, complete = yield from read_json_value(source)
    if not complete:
        yield CutOff()
        return
    yield CallBegin(name.strip())
    yield CallArguments(arguments)
    yield CallEnd()


COMMAND_R = ToolFormat(
    name="command_r",
    read=_read,
    markers=(Marker(_START_ACTION), Marker(_ACTION, "line")),
    noise=("<|END_ACTION|>",),
    frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
