"""Granite 3: a JSON list after ``<|tool_call|>`` or ``<tool_call>``, the answer possibly inside ``<response>`` tags."""

from __future__ import annotations

from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_calls import JsonCallReader
from mlxcel.text.tool_formats.source import Reader, Source


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    yield from JsonCallReader(tools, incremental=False).read(source)


GRANITE = ToolFormat(
    name="granite",
    read=_read,
    markers=(Marker("<|tool_call|>"), Marker("<tool_call>")),
    noise=("</tool_call>",),
    frames=("<response>", "</response>"),
)
