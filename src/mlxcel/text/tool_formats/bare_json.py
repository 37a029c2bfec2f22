"""Calls as plain JSON without a delimiter of their own: Llama 3, the generic fallback, and fenced ``json`` blocks.

The same text may be an answer that happens to be JSON. It is a call only when it names a declared function and carries
arguments; otherwise it is given back as text, as soon as that is clear.
"""

from __future__ import annotations

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import JsonCallShape, Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.literals import LiteralError
from mlxcel.text.tool_formats.pythonic import parse_python_calls, send_python_calls
from mlxcel.text.tool_formats.source import (
    Malformed,
    NotACall,
    Reader,
    Source,
    accept,
    peek,
    skip_space,
    take_until,
)

FENCE = Marker("```", "line")
BARE = (Marker("{", "start"), Marker("[", "start"))
_PYTHON_TAG = "<|python_tag|>"
_TAGS = ("<tool_call>", "<tool_calls>", "<TOOLCALL>", _PYTHON_TAG)  # the middle two: Apriel and MiniMax M1; Nemotron
_NEVER = MarkerScanner(())


def read_bare_json(source: Source, marker: str, tools: ToolTable, *, incremental: bool = True) -> Reader[None]:
    """Read what begins with ``marker``: a fence, or the first bracket of the JSON itself."""
    reader = JsonCallReader(tools, incremental=incremental, speculative=True)
    if marker != FENCE.text:
        yield from reader.read(source, opening=marker, separators=",;")
        return
    yield from accept(source, "json", "tool_call")
    yield from skip_space(source)
    if (yield from peek(source, 1)) not in ("{", "["):
        yield NotACall()
    elif (yield from reader.read(source)):
        yield from skip_space(source)
        yield from accept(source, FENCE.text)


def _read_llama(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    if marker == _PYTHON_TAG:
        yield from _read_python_tag(source, tools)
    else:
        yield from read_bare_json(source, marker, tools)


def _read_generic(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    if marker in _TAGS:
        yield from JsonCallReader(tools, incremental=False).read(source, separators=",;")
    else:
        yield from read_bare_json(source, marker, tools, incremental=False)


def _read_python_tag(source: Source, tools: ToolTable) -> Reader[None]:
    """After the tag comes JSON, or a built-in tool as ``NAME.call(key="value")``."""
    yield from skip_space(source)
    if (yield from peek(source, 1)) in ("{", "["):
        yield from JsonCallReader(tools).read(source, separators=",;")
        return
    text, _ = yield from take_until(source, _NEVER)
    try:
        calls, _ = parse_python_calls(text, tools)
    except LiteralError:
        yield Malformed()
        return
    yield from send_python_calls([(name.removesuffix(".call"), arguments) for name, arguments in calls], tools)


LLAMA3 = ToolFormat(
    name="llama3_json",
    read=_read_llama,
    markers=(Marker(_PYTHON_TAG), FENCE, *BARE),
    shape=JsonCallShape(open="", close="", arguments_key="parameters", separator="; "),
)
GENERIC = ToolFormat(
    name="generic",
    read=_read_generic,
    markers=(*(Marker(tag) for tag in _TAGS), FENCE, *BARE),
    noise=("</tool_call>", "</tool_calls>", "</TOOLCALL>"),
    shape=JsonCallShape("<tool_call>\n", "\n</tool_call>", "arguments", separator="\n"),
    warning="the model's chat template has no known tool-call format; calls are only recognised as generic JSON",
)
