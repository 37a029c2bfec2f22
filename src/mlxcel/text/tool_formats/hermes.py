"""Calls inside ``<tool_call>`` … ``</tool_call>``: Hermes and Qwen JSON, and Qwen3-Coder's XML.

Checkpoints of one family mix the two bodies, so the first character inside the tag decides, whichever format was detected::

    <tool_call>                                  <tool_call>
    {"name": "f", "arguments": {"a": 1}}         <function=f>
    </tool_call>                                 <parameter=a>
                                                 1
                                                 </parameter>
                                                 </function>
                                                 </tool_call>
"""

from __future__ import annotations

from mlxcel.text.tool_formats.bare_json import FENCE, read_bare_json
from mlxcel.text.tool_formats.base import JsonCallShape, Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.function_tag import FUNCTION_OPEN, FUNCTION_TAGS, read_function_tag
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.source import Malformed, Reader, Source, accept, peek, skip_space

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    if marker == FUNCTION_OPEN:
        yield from read_function_tag(source, tools)
        return
    if marker != _OPEN:
        yield from read_bare_json(source, marker, tools)
        return
    yield from skip_space(source)
    if (yield from peek(source, 1)) in ("{", "["):
        yield from JsonCallReader(tools).read(source)
    elif (yield from accept(source, FUNCTION_OPEN)):
        yield from read_function_tag(source, tools)
    else:
        yield Malformed()


HERMES = ToolFormat(
    name="hermes",
    read=_read,
    markers=(Marker(_OPEN), FENCE, Marker("{", "start")),
    noise=(_CLOSE,),
    delimiters=FUNCTION_TAGS,
    shape=JsonCallShape(open="<tool_call>\n", close="\n</tool_call>", arguments_key="arguments", separator="\n"),
)
QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    read=_read,
    markers=(Marker(_OPEN), Marker(FUNCTION_OPEN)),
    noise=(_CLOSE, "<seed:tool_call>", "</seed:tool_call>"),  # Seed-OSS writes the same calls between tags of its own
    delimiters=FUNCTION_TAGS,
)
