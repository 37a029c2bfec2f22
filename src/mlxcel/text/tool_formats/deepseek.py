r"""DeepSeek V3, R1 and V3.1.

V3 and R1 write ``function<｜tool▁sep｜>NAME\n`` and a fenced JSON block, V3.1 ``NAME<｜tool▁sep｜>{json}``.
"""

from __future__ import annotations

from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    Reader,
    Source,
    accept,
    peek,
    read_line,
    read_name,
    skip_space,
)

_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_FENCE = "```"


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    header = yield from read_name(source, _SEPARATOR)
    if header is None:
        return
    name: str | None = header[0]
    yield from skip_space(source)
    fenced = (yield from peek(source, 1)) != "{"
    if fenced:
        name = yield from read_line(source)
        yield from accept(source, _FENCE)
        yield from accept(source, "json")
        yield from skip_space(source)
    if not name or (yield from peek(source, 1)) != "{":
        yield CutOff() if source.closed and not source.available else Malformed()
        return
    arguments, complete = yield from read_json_value(source)
    if not complete:
        yield CutOff()
        return
    yield CallBegin(name)
    yield CallArguments(arguments)
    yield CallEnd()
    if fenced:
        yield from skip_space(source)
        yield from accept(source, _FENCE)


DEEPSEEK = ToolFormat(
    name="deepseek",
    read=_read,
    markers=(Marker(_BEGIN),),
    noise=(*_SECTION, _END),
    delimiters=(_SEPARATOR,),
    ends_thinking=_SECTION[:1],
)
