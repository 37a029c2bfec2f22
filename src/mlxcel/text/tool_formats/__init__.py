"""How model families write tool calls: one small module a family, one reader for whole and streamed output."""

from mlxcel.text.tool_formats.base import JsonCallShape, ToolFormat
from mlxcel.text.tool_formats.registry import FORMATS, detect_format, format_by_name
from mlxcel.text.tool_formats.stream import ParsedOutput, ToolStream, parse_output

__all__ = [
    "FORMATS",
    "JsonCallShape",
    "ParsedOutput",
    "ToolFormat",
    "ToolStream",
    "detect_format",
    "format_by_name",
    "parse_output",
]
