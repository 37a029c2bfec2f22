"""Gemma's calls: ``<|tool_call>call:NAME{key:<|"|>text<|"|>,n:5}<tool_call|>``, and the older function-calling Gemma's.

Strings stand between delimiters of their own, without escapes; keys and all other values are bare.
"""

from __future__ import annotations

import re

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.coerce import ArgumentSchema
from mlxcel.text.tool_formats.literals import LiteralError, LiteralReader
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    Reader,
    Source,
    take_until,
)

_NAME = re.compile(r"[\w.\-]+")


def _make(name: str, opening: str, closing: str, quote: str, noise: tuple[str, ...]) -> ToolFormat:
    outside = MarkerScanner((closing, quote))
    inside = MarkerScanner((quote,))

    def read_region(source: Source) -> Reader[tuple[str, bool]]:
        """Everything up to the closing delimiter, which does not count inside a string."""
        parts: list[str] = []
        while True:
            text, found = yield from take_until(source, outside)
            parts += (text, found if found == quote else "")
            if found != quote:
                return "".join(parts), bool(found)
            text, found = yield from take_until(source, inside)
            parts += (text, found)
            if not found:
                return "".join(parts), False

    def read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
        text, complete = yield from read_region(source)
        reader = LiteralReader(text, string_delimiter=quote)
        reader.accept("call:")
        reader.skip_space()
        name = _NAME.match(text, reader.position)
        try:
            if name is None:
                raise LiteralError("no function name")
            reader.position = name.end()
            arguments = reader.mapping()
        except LiteralError:
            yield Malformed() if complete else CutOff()
            return
        yield CallBegin(name.group())
        yield CallArguments(ArgumentSchema(tools.schema(name.group())).members(arguments))
        yield CallEnd()

    return ToolFormat(
        name=name,
        read=read,
        markers=(Marker(opening),),
        noise=(closing, *noise),
        delimiters=(quote,),
    )


GEMMA4 = _make("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>', ("<|tool_response>",))
FUNCTION_GEMMA = _make(
    "function_gemma", "<start_function_call>", "<end_function_call>", "<escape>", ("<start_function_response>",)
)
