"""Calls of the form ``<function=NAME>`` … ``</function>`` with JSON (Functionary v3.1) or parameter tags (Qwen3-Coder)."""

from __future__ import annotations

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
)
from mlxcel.text.tool_formats.tagged import TagDialect, read_tagged_call

FUNCTION_OPEN, FUNCTION_CLOSE = "<function=", "</function>"
_PARAMETERS = TagDialect(
    key_open="<parameter=", key_close=">", value_close="</parameter>", ends=(FUNCTION_CLOSE, "</tool_call>"), lines=True
)
FUNCTION_TAGS = (FUNCTION_OPEN, FUNCTION_CLOSE, _PARAMETERS.key_open, _PARAMETERS.value_close)


def read_function_tag(source: Source, tools: ToolTable) -> Reader[None]:
    """Read what follows ``<function=``; string parameters stream as they come."""
    header = yield from read_name(source, ">")
    if header is None:
        return
    name = header[0]
    yield from skip_space(source)
    if (yield from peek(source, 1)) == "{":
        yield from _read_json_body(source, name)
    else:
        yield from read_tagged_call(source, tools, _PARAMETERS, name, incremental=True)


def _read_json_body(source: Source, name: str) -> Reader[None]:
    text, complete = yield from read_json_value(source)
    if not complete:
        yield CutOff()
        return
    yield CallBegin(name)
    yield CallArguments(text)
    yield CallEnd()


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    yield from read_function_tag(source, tools)


FUNCTIONARY_V31 = ToolFormat(
    name="functionary_v3.1",
    read=_read,
    markers=(Marker(FUNCTION_OPEN),),
    noise=(FUNCTION_CLOSE,),
    delimiters=FUNCTION_TAGS,
)
