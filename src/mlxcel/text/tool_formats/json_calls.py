"""Calls written as JSON objects: ``{"name": "f", "arguments": {...}}`` and its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.text.tool_formats.base import ToolTable
from mlxcel.text.tool_formats.json_text import decode_string, read_json_value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    NotACall,
    Reader,
    Source,
    accept,
    peek,
    skip_space,
)

_NAME_KEYS = frozenset({"name", "tool_name"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_ID_KEYS = frozenset({"id", "tool_call_id", "call_id"})
_KNOWN_KEYS = _NAME_KEYS | _ARGUMENT_KEYS | _ID_KEYS | {"type", "function"}


def _keep_none(call_id: str) -> bool:
    return False


@dataclass
class _Call:
    """What is known of the call object being read."""

    name: str | None = None
    id: str | None = None
    arguments: str | None = None  # read, not sent yet
    sent: bool = False  # CallBegin and the arguments were sent as they came
    whole: bool = False  # the arguments are complete


@dataclass(frozen=True, slots=True)
class JsonCallReader:
    """Reads call objects.

    Attributes:
        tools: the request's functions.
        incremental: send the arguments as they come; else in one piece when the object is complete.
        speculative: the text may be ordinary JSON. It is a call only when the name is declared and arguments are present;
            the reader gives up at the first sign to the contrary.
        keeps_id: which ids written by the model are kept.
    """

    tools: ToolTable
    incremental: bool = True
    speculative: bool = False
    keeps_id: Callable[[str], bool] = _keep_none

    def read(self, source: Source, *, opening: str = "", separators: str = ",") -> Reader[bool]:
        """Read objects with one of ``separators`` or nothing between them, or an array of objects.

        Args:
            opening: the first bracket, when it was consumed already.

        Returns:
            True when calls were read; False after a failure was reported with :class:`NotACall`, :class:`Malformed` or
            :class:`CutOff`.
        """
        if not opening:
            yield from skip_space(source)
            opening = yield from accept(source, "[", "{")
        in_list = opening == "["
        opened = opening == "{"
        count = 0
        while True:
            if not opened:
                yield from skip_space(source)
                if in_list and (yield from accept(source, "]")):
                    return count > 0
                opened = bool((yield from accept(source, "{")))
            if not opened:
                if count and not in_list:
                    return True
                yield self._failure(source, early=not count)
                return False
            if not (yield from self._read_object(source, first=not count)):
                return False
            opened = False
            count += 1
            yield from skip_space(source)
            while not in_list and (yield from accept(source, "}")):
                yield from skip_space(source)  # a common slip: one bracket too many
            yield from accept(source, *separators)

    def _failure(self, source: Source, *, early: bool) -> NotACall | Malformed | CutOff:
        if self.speculative and early:
            return NotACall()
        return CutOff() if source.closed and not source.available else Malformed()

    def _read_object(self, source: Source, *, first: bool) -> Reader[bool]:
        call = _Call()
        complete = yield from self._read_members(source, call, nested=False)
        if call.sent:
            # The object's own closing bracket may be missing: a common slip that loses nothing.
            yield CallEnd() if call.whole else CutOff()
            return call.whole
        has_arguments = call.arguments is not None
        if not call.name or (not complete and not call.whole) or (self.speculative and not (complete and has_arguments)):
            yield self._failure(source, early=first)
            return False
        yield CallBegin(call.name, call.id)
        yield CallArguments(call.arguments if call.arguments is not None else "{}")
        yield CallEnd()
        return True

    def _read_members(self, source: Source, call: _Call, *, nested: bool) -> Reader[bool]:
        """Read what follows ``{``; True when it was complete and well formed as far as a call needs."""
        while True:
            yield from skip_space(source)
            if (yield from accept(source, "}")):
                return True
            if not (yield from self._read_member(source, call, nested=nested)):
                return False
            yield from skip_space(source)
            yield from accept(source, ",")

    def _read_member(self, source: Source, call: _Call, *, nested: bool) -> Reader[bool]:
        if (yield from peek(source, 1)) != '"':
            return False
        raw_key, _ = yield from read_json_value(source)
        key = decode_string(raw_key)
        yield from skip_space(source)
        if key is None or not (yield from accept(source, ":")):
            return False
        if self.speculative and key not in _KNOWN_KEYS and not call.sent:
            return False
        yield from skip_space(source)
        following = yield from peek(source, 1)
        if key in _ARGUMENT_KEYS and call.arguments is None and not call.sent:
            return (yield from self._read_arguments(source, call, following))
        if key == "function" and following == "{" and not nested:
            source.take(1)
            return (yield from self._read_members(source, call, nested=True))
        raw, complete = yield from read_json_value(source)
        value = decode_string(raw)
        if key in _NAME_KEYS or (key == "function" and call.name is None):
            if not value or (self.speculative and not self.tools.declares(value)):
                return False
            call.name = call.name if call.sent else value
        elif key in _ID_KEYS:
            call.id = value if value and self.keeps_id(value) else None
        return complete

    def _read_arguments(self, source: Source, call: _Call, following: str) -> Reader[bool]:
        """An object goes out as written; a string is the arguments text itself; null stands for no arguments."""
        if following == "{" and call.name and self.incremental:
            yield CallBegin(call.name, call.id)
            call.sent = True
            _, call.whole = yield from read_json_value(source, emit=True)
            return call.whole
        raw, call.whole = yield from read_json_value(source)
        text = decode_string(raw)
        call.arguments = text if text is not None else "{}" if raw == "null" else raw
        return call.whole
