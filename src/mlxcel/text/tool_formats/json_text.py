"""JSON text as the model writes it: where a value ends, without parsing it and without recursion."""

from __future__ import annotations

import json
import re

from mlxcel.text.tool_formats.source import CallArguments, Reader, Source, peek

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,}\]]")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class _Extent:
    """Finds the end of an object, array or string in text that comes in pieces."""

    __slots__ = ("_depth", "_escaped", "_in_string", "done")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.done = False

    def advance(self, text: str, start: int) -> int:
        """Return the offset after the value when it ends in ``text``, else ``len(text)``."""
        position = start
        if self._escaped and position < len(text):
            position += 1
            self._escaped = False
        while position < len(text) and not self.done:
            match = (_IN_STRING if self._in_string else _STRUCTURE).search(text, position)
            if match is None:
                return len(text)
            position = match.end()
            position = self._meet(match.group(), position, len(text))
        return position

    def _meet(self, char: str, position: int, length: int) -> int:
        if char == "\\":
            if position < length:
                return position + 1
            self._escaped = True
        elif char == '"':
            self._in_string = not self._in_string
            self.done = not self._in_string and self._depth == 0
        else:
            self._depth += 1 if char in "{[" else -1
            self.done = self._depth <= 0
        return position


def read_json_value(source: Source, *, opening: str = "", emit: bool = False) -> Reader[tuple[str, bool]]:
    """Consume one JSON value that begins right here and return ``(its text, complete)``.

    Brackets and strings are matched; nothing else is checked, so the model's own spelling survives.

    Args:
        opening: the first bracket, when it was consumed already.
        emit: yield the text as :class:`CallArguments` while it comes.
    """
    parts: list[str] = []
    first = opening or (yield from peek(source, 1))
    if first not in ("{", "[", '"'):
        return (yield from _read_scalar(source, emit=emit))
    extent = _Extent()
    extent.advance(opening, 0)
    while True:
        part = opening + source.take(extent.advance(source.text, source.pos) - source.pos)
        opening = ""
        parts.append(part)
        if emit and part:
            yield CallArguments(part)
        if extent.done or source.closed:
            return "".join(parts), extent.done
        yield None


def _read_scalar(source: Source, *, emit: bool) -> Reader[tuple[str, bool]]:
    parts: list[str] = []
    while True:
        match = _SCALAR_END.search(source.text, source.pos)
        end = match.start() if match is not None else len(source.text)
        part = source.take(end - source.pos)
        parts.append(part)
        if emit and part:
            yield CallArguments(part)
        if match is not None or source.closed:
            return "".join(parts), match is not None and any(parts)
        yield None


def decode_string(text: str) -> str | None:
    """The value of a JSON string literal; None when ``text`` is something else. Raw control characters are tolerated."""
    if not text.startswith('"'):
        return None
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def quote(text: str) -> str:
    """``text`` as a JSON string literal, non-ASCII kept."""
    return json.dumps(text, ensure_ascii=False)


def is_number(text: str) -> bool:
    """True when ``text`` is a JSON number."""
    return _NUMBER.fullmatch(text) is not None


def load_strictly(text: str) -> tuple[bool, object]:
    """Parse JSON text: ``(True, value)``, or ``(False, None)`` when it is too deep or no JSON (NaN and Infinity are not)."""
    try:
        return True, json.loads(text, parse_constant=_refuse_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False, None


def _refuse_constant(name: str) -> object:
    raise ValueError(name)
