"""MiniMax M3: XML whose every tag follows a namespace token. Objects nest as elements, arrays as ``<item>`` elements.

Because the token cannot occur in a value, values need no escaping.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import Marker, ToolFormat, ToolTable
from mlxcel.text.tool_formats.coerce import ArgumentSchema
from mlxcel.text.tool_formats.literals import MAX_DEPTH, Bare, Value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    Reader,
    Source,
    read_name,
    take_until,
)

_TOKEN = "]<]minimax[>["  # noqa: S105  (a delimiter, not a secret)
_OPEN, _SECTION_OPEN, _SECTION_CLOSE = f'{_TOKEN}<invoke name="', f"{_TOKEN}<tool_call>", f"{_TOKEN}</tool_call>"
_TOKENS = MarkerScanner((_TOKEN,))
_TAG_END = MarkerScanner((">",))
_TAG = re.compile(r"<(/?)([^<>\"]{1,256})")
_ITEM = "item"


@dataclass
class _Element:
    tag: str
    schema: Any
    text: list[str] = field(default_factory=list)
    children: list[tuple[str, Value]] = field(default_factory=list)

    def value(self, schemas: ArgumentSchema) -> Value:
        types = schemas.types(self.schema)
        if not self.children:
            return Bare("".join(self.text))
        all_items = all(tag == _ITEM for tag, _ in self.children)
        if "array" in types or (all_items and "object" not in types):
            return [value for _, value in self.children]
        return dict(self.children)

    def child_schema(self, tag: str, schemas: ArgumentSchema) -> Any:
        return schemas.child(self.schema, tag) or (schemas.item(self.schema) if tag == _ITEM else None)


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    header = yield from read_name(source, '">')
    if header is None:
        return
    parameters = tools.schema(header[0])
    schemas = ArgumentSchema(parameters)
    path = [_Element("invoke", parameters)]
    while path:
        text, token = yield from take_until(source, _TOKENS)
        path[-1].text.append(text)
        tag_text, end = yield from take_until(source, _TAG_END)
        if not token or not end:
            yield CutOff()
            return
        tag = _TAG.fullmatch(tag_text)
        if tag is None or len(path) > MAX_DEPTH:
            yield Malformed()
            return
        if not tag.group(1):
            path.append(_Element(tag.group(2), path[-1].child_schema(tag.group(2), schemas)))
            continue
        element = path.pop()
        if element.tag != tag.group(2):
            yield Malformed()
            return
        if path:
            path[-1].children.append((element.tag, element.value(schemas)))
            continue
        yield CallBegin(header[0])
        yield CallArguments(schemas.members(dict(element.children)))
        yield CallEnd()


MINIMAX_M3 = ToolFormat(
    name="minimax_m3",
    read=_read,
    markers=(Marker(_OPEN),),
    noise=(_SECTION_OPEN, _SECTION_CLOSE),
    delimiters=(_TOKEN,),
)
