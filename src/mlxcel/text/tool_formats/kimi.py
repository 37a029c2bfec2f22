"""Kimi K2: a section of calls, each ``functions.NAME:INDEX``, a delimiter, and JSON.

The header is the call's id: the model's templates expect to see it again in the history, so it is kept.
"""

from __future__ import annotations

import re

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Reader,
    Source,
    peek,
    read_name,
    skip_space,
    take_until,
)

_BEGIN, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_SECTION_BEGIN, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL_END = MarkerScanner((_END, _SECTION_END))
_HEADER = re.compile(r"(?:functions\.)?(.+?)(?::\d+)?")


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    header = yield from read_name(source, _ARGUMENTS)
    if header is None:
        return
    call_id = header[0]
    match = _HEADER.fullmatch(call_id)
    name = match.group(1) if match is not None else call_id
    yield from skip_space(source)
    if (yield from peek(source, 1)) == "{":
        arguments, complete = yield from read_json_value(source)
    else:
        arguments, end = yield from take_until(source, _CALL_END)
        complete = bool(end)
    if not complete:
        yield CutOff()
        return
    yield CallBegin(name, call_id if ":" in call_id else None)
    yield CallArguments(arguments.strip() or "{}")
    yield CallEnd()


KIMI_K2 = ToolFormat(
    name="kimi_k2",
    read=_read,
    markers=(Marker(_BEGIN),),
    noise=(_SECTION_BEGIN, _SECTION_END, _END),
    delimiters=(_ARGUMENTS,),
    ends_thinking=(_SECTION_BEGIN,),
)
