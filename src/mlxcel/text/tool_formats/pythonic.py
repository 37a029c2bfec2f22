"""Calls written as Python: ``<|tool_call_start|>[f(a="x", b=2), g()]<|tool_call_end|>``, or the bare list.

The arguments are read as literals; nothing is evaluated.
"""

from __future__ import annotations

import re

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.coerce import ArgumentSchema
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.literals import LiteralError, LiteralReader, Value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    NotACall,
    Reader,
    Source,
    Text,
    peek,
    skip_space,
    take_until,
)

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_NAME = re.compile(r"\s*([A-Za-z_][\w.\-]*)\s*\(")
_KEYWORD = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")
_JSON_CALLS = re.compile(r"\{|\[\s*\{")
_END = MarkerScanner((_CLOSE,))
_NEVER = MarkerScanner(())
_MAX_NAME_CHARS = 256

PythonCall = tuple[str, dict[str, Value]]


def parse_python_calls(text: str, tools: ToolTable) -> tuple[list[PythonCall], int]:
    """Read ``[f(...), g(...)]`` or ``f(...)`` from the start of ``text``: the calls and the offset after them.

    Positional arguments take the names of the declared parameters, in order. Raises LiteralError.
    """
    reader = LiteralReader(text)
    in_list = reader.accept("[")
    calls = [_read_call(reader, tools)]
    while reader.accept(",") or reader.accept(";"):
        calls.append(_read_call(reader, tools))
    if in_list:
        reader.expect("]")
    return calls, reader.position


def _read_call(reader: LiteralReader, tools: ToolTable) -> PythonCall:
    match = _NAME.match(reader.text, reader.position)
    if match is None:
        raise LiteralError(f"expected a function name at offset {reader.position}")
    reader.position = match.end()
    name = match.group(1)
    parameters = tools.schema(name).get("properties")
    positional = iter(parameters if isinstance(parameters, dict) else ())
    arguments: dict[str, Value] = {}
    while not reader.accept(")"):
        keyword = _KEYWORD.match(reader.text, reader.position)
        if keyword is not None:
            reader.position = keyword.end()
        key = keyword.group(1) if keyword is not None else next(positional, None)
        if key is None:
            raise LiteralError(f"{name} has no parameter for a positional argument")
        arguments[key] = reader.value()
        if not reader.accept(","):
            reader.expect(")")
            break
    return name, arguments


def send_python_calls(calls: list[PythonCall], tools: ToolTable) -> Reader[None]:
    """Report calls read by :func:`parse_python_calls`, typed by their schemas."""
    for name, arguments in calls:
        yield CallBegin(name)
        yield CallArguments(ArgumentSchema(tools.schema(name)).members(arguments))
        yield CallEnd()


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    if marker != _OPEN:
        yield from _read_bare(source, tools)
        return
    yield from skip_space(source)
    text, end = yield from take_until(source, _END)
    if _JSON_CALLS.match(text):  # the same families also write JSON when a system prompt asks for it
        body = Source()
        body.feed(text)
        body.closed = True
        yield from JsonCallReader(tools, incremental=False).read(body)
        return
    try:
        calls, _ = parse_python_calls(text, tools)
    except LiteralError:
        yield Malformed() if end else CutOff()
        return
    yield from send_python_calls(calls, tools)


def _read_bare(source: Source, tools: ToolTable) -> Reader[None]:
    """Read a list that begins with a declared function's name; the opening bracket is consumed."""
    count = 1
    while True:
        ahead = yield from peek(source, count)
        match = _NAME.match(ahead)
        if match is not None and tools.declares(match.group(1)):
            break
        if match is not None or len(ahead) < count or count > _MAX_NAME_CHARS or not re.fullmatch(r"[\w.\-\s]*", ahead):
            yield NotACall()
            return
        count += 1
    text, _ = yield from take_until(source, _NEVER)
    try:
        calls, end = parse_python_calls("[" + text, tools)
    except LiteralError:
        yield NotACall()
        return
    yield from send_python_calls(calls, tools)
    yield Text(text[end - 1 :])


PYTHONIC = ToolFormat(
    name="pythonic",
    read=_read,
    markers=(Marker(_OPEN), Marker("[", "start")),
    noise=(_CLOSE,),
)
