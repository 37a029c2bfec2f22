"""Arguments written between tags, one tag pair a parameter: Qwen3-Coder, MiniMax M2, GLM, LongCat and ATEM."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import ToolTable
from mlxcel.text.tool_formats.coerce import ArgumentSchema, coerce_text
from mlxcel.text.tool_formats.json_text import quote
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    Reader,
    Source,
    accept,
    comes_next,
    skip_space,
    take_some,
    take_until,
)

_TEXT = frozenset({"string"})


@dataclass(frozen=True, slots=True)
class TagDialect:
    """The tags around one call's arguments.

    Attributes:
        key_open, key_close: around a parameter's name (``<parameter=``, ``>``).
        text_key_close: another end of the name, saying that the value is text when the schema does not tell.
        value_open: between the name and the value, after optional white space; "" when the name's end opens the value.
        value_close: after the value. It only counts when ``key_open`` or one of ``ends`` follows, so a value may contain it.
        ends: what ends the call; the first is consumed.
        lines: values stand on lines of their own; one newline on either side belongs to the markup.
    """

    key_open: str
    key_close: str
    value_close: str
    ends: tuple[str, ...]
    value_open: str = ""
    text_key_close: str = ""
    lines: bool = False


def read_tagged_call(
    source: Source, tools: ToolTable, dialect: TagDialect, name: str, *, incremental: bool = False, key_opened: bool = False
) -> Reader[None]:
    """Read the parameters of the call ``name`` up to and including its end.

    Args:
        incremental: send string values as they come and other values as they are complete; else everything at the end.
        key_opened: the first ``key_open`` was consumed already.
    """
    schema = ArgumentSchema(tools.schema(name))
    pending: list[str] = []
    if incremental:
        yield CallBegin(name)
    separator = "{"
    while True:
        if not key_opened:
            yield from skip_space(source)
            key_opened = bool((yield from accept(source, dialect.key_open)))
        if not key_opened:
            break
        key_opened = False
        key, closing = yield from _read_key(source, dialect)
        types = schema.types(schema.property(key)) or (_TEXT if closing == dialect.text_key_close else frozenset())
        streamed = incremental and types == _TEXT
        fragment = f"{separator}{quote(key)}: " + ('"' if streamed else "")
        if incremental:
            yield CallArguments(fragment)
        value, complete = yield from _read_value(source, dialect, emit=streamed)
        if not complete:
            yield CutOff()
            return
        written = '"' if streamed else coerce_text(value, types)
        if incremental:
            yield CallArguments(written)
        else:
            pending += (fragment, written)
        separator = ", "
    yield from _end_call(source, dialect, name, pending, "}" if separator == ", " else "{}", incremental=incremental)


def _read_key(source: Source, dialect: TagDialect) -> Reader[tuple[str, str]]:
    """Read a parameter's name and what stands between it and its value: ``(name, delimiter after the name)``."""
    key, closing = yield from take_until(source, MarkerScanner((dialect.key_close, dialect.text_key_close)))
    if dialect.value_open:
        yield from skip_space(source)
        yield from accept(source, dialect.value_open)
    return key.strip(), closing or dialect.key_close


def _end_call(
    source: Source, dialect: TagDialect, name: str, pending: list[str], closing: str, *, incremental: bool
) -> Reader[None]:
    ended = yield from accept(source, dialect.ends[0])
    follows = ended or (yield from comes_next(source, *dialect.ends))
    if not incremental and not follows:
        yield Malformed()
        return
    if not incremental and (ended or pending):
        yield CallBegin(name)
        yield CallArguments("".join((*pending, closing)))
        yield CallEnd()
    elif incremental:
        yield CallArguments(closing)
        yield CallEnd()
    if not ended and source.closed and not source.available:
        yield CutOff()


def _read_value(source: Source, dialect: TagDialect, *, emit: bool) -> Reader[tuple[str, bool]]:
    """Read a value and its closing tag: ``(value, complete)``. With ``emit`` the value goes out as JSON string pieces."""
    closes = [dialect.value_close]
    if dialect.lines:
        yield from accept(source, "\n")
        closes.append("\n" + dialect.value_close)
    scanner = MarkerScanner(closes)
    parts: list[str] = []
    while True:
        text, marker, done = take_some(source, scanner)
        complete = bool(marker) and (yield from comes_next(source, dialect.key_open, *dialect.ends))
        if marker and not complete:  # the value itself contains the tag
            text, done = text + marker, False
        parts.append(text)
        if emit and text:
            yield CallArguments(quote(text)[1:-1])
        if done:
            return "".join(parts), complete
        if not marker:
            yield None
