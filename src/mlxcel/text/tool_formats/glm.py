"""GLM-4.5 to 4.7 and LongCat-Flash: the name, then pairs of key and value tags.

``<tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>``
"""

from __future__ import annotations

from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.source import CallArguments, CallBegin, CallEnd, Reader, Source, peek, read_name, skip_space
from mlxcel.text.tool_formats.tagged import TagDialect, read_tagged_call


def _make(name: str, prefix: str) -> ToolFormat:
    opening, closing = f"<{prefix}tool_call>", f"</{prefix}tool_call>"
    tags = TagDialect(
        key_open=f"<{prefix}arg_key>",
        key_close=f"</{prefix}arg_key>",
        value_open=f"<{prefix}arg_value>",
        value_close=f"</{prefix}arg_value>",
        ends=(closing, opening),
    )

    def read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
        yield from skip_space(source)
        if (yield from peek(source, 1)) == "{":
            yield from JsonCallReader(tools, incremental=False).read(source)
            return
        header = yield from read_name(source, tags.key_open, closing)
        if header is None:
            return
        if header[1] == closing:
            yield CallBegin(header[0])
            yield CallArguments("{}")
            yield CallEnd()
        else:
            yield from read_tagged_call(source, tools, tags, header[0], key_opened=True)

    return ToolFormat(
        name=name,
        read=read,
        markers=(Marker(opening),),
        noise=(closing,),
        delimiters=(tags.key_open, tags.key_close, tags.value_open, tags.value_close),
    )


GLM = _make("glm", "")
LONGCAT = _make("longcat", "longcat_")
