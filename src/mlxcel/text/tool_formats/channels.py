"""Families whose whole output is a sequence of addressed messages: Harmony (GPT-OSS) and ATEM (Muse Glimmer).

A message is a header, ``<|message|>``, a body and an end delimiter; the header says for whom the body is. Reasoning, answer
and calls are all told apart here::

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
    <|message|>{"a": 1}<|call|>

The last end delimiter is usually an end-of-generation token and does not reach the text. A message in another role than the
assistant's is invented (a tool result that nobody computed); it and everything that builds on it are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.reasoning import Segment
from mlxcel.text.tool_formats.base import ToolFormat, ToolTable
from mlxcel.text.tool_formats.invoke_tag import InvokeDialect
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Reader,
    Source,
    Text,
    accept,
    peek,
    skip_space,
    take_some,
    take_until,
)

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ROLE = re.compile(r"<\|start\|>\s*([^\s<]*)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_HEADER_END = MarkerScanner((_MESSAGE,))
_NEVER = MarkerScanner(())
_BREAK: dict[str, str] = {"thinking": "\n", "user": "\n\n"}  # between two messages for the same audience


@dataclass(frozen=True, slots=True)
class _Address:
    audience: Literal["thinking", "user", "tool", "nobody"]
    tool: str = ""


class _Envelope:
    """One family's way of addressing messages.

    Args:
        ends: delimiters after a body.
        restarts: delimiters that begin a header.
        address: reads a header.
        read_call: reads a call's body and returns the delimiter that ended it, "" at the end of the output.
    """

    def __init__(
        self,
        *,
        ends: tuple[str, ...],
        restarts: tuple[str, ...],
        address: Callable[[str, ToolTable], _Address],
        read_call: Callable[[Source, str, ToolTable, MarkerScanner], Reader[str]],
    ) -> None:
        self.delimiters = (*ends, *restarts, _MESSAGE)
        self._ends = ends
        # The prompt gave the role already, so the output may begin in the middle of a header.
        self._openings = (*restarts, _MESSAGE, " to=", "to=")
        self._boundary = MarkerScanner((*ends, *restarts))
        self._restart = MarkerScanner(restarts)
        self._address = address
        self._read_call = read_call

    def read(self, source: Source, marker: str, tools: ToolTable) -> Reader[None]:
        """Read the whole output."""
        addressed: set[str] = set()
        delimiter = yield from accept(source, *self._openings)
        if not delimiter:  # an answer without a header, as a grammar may force it
            delimiter = yield from self._read_body(source, _Address("user"), "", tools)
        while delimiter:
            if delimiter in self._ends:
                _, delimiter = yield from take_until(source, self._restart)
                continue
            rest, found = ("", _MESSAGE) if delimiter == _MESSAGE else (yield from take_until(source, _HEADER_END))
            header = delimiter + rest
            address = self._address(header, tools)
            if address.audience == "nobody":
                yield from take_until(source, _NEVER)
                return
            if not found:
                if address.audience == "tool":
                    yield CutOff()
                return
            if address.audience in addressed:
                yield from _say(address, _BREAK.get(address.audience, ""))
            addressed.add(address.audience)
            raw = header if delimiter == _MESSAGE else header + _MESSAGE
            delimiter = yield from self._read_body(source, address, raw, tools)

    def _read_body(self, source: Source, address: _Address, header: str, tools: ToolTable) -> Reader[str]:
        """Read a body and return the delimiter that ended it, "" at the end of the output."""
        if address.audience == "tool" and tools:
            return (yield from self._read_call(source, address.tool, tools, self._boundary))
        thinking = address.audience == "thinking"
        if thinking:
            yield Segment(True, "", header)
        while True:
            text, delimiter, done = take_some(source, self._boundary)
            yield from _say(address, text)
            if done:
                break
            yield None
        if thinking:
            yield Segment(True, "", delimiter if delimiter in self._ends else "")
            yield Segment(False, "", "")
        return delimiter


def _say(address: _Address, text: str) -> Reader[None]:
    if text:
        yield Segment(True, text, text) if address.audience == "thinking" else Text(text)


def _role(header: str) -> str:
    match = _ROLE.match(header)
    return match.group(1) if match is not None else "assistant"


def _recipient(header: str) -> str:
    match = _RECIPIENT.search(header)
    return match.group(1) if match is not None else ""


def _harmony_address(header: str, tools: ToolTable) -> _Address:
    """Calls go to ``functions.NAME`` whatever the channel; other recipients are tools the model has only in its mind."""
    if _role(header) != "assistant":
        return _Address("nobody")
    recipient = _recipient(header)
    if recipient.startswith("functions.") or tools.declares(recipient):
        return _Address("tool", recipient)
    channel = _CHANNEL_NAME.search(header)
    if recipient or (channel is not None and channel.group(1) == "analysis"):
        return _Address("thinking")
    return _Address("user")


def _read_harmony_call(source: Source, name: str, tools: ToolTable, boundary: MarkerScanner) -> Reader[str]:
    yield from skip_space(source)
    if (yield from peek(source, 1)) == "{":
        arguments, complete = yield from read_json_value(source)
        ending = (yield from take_until(source, boundary))[1] if complete else ""
    else:
        arguments, ending = yield from take_until(source, boundary)
        complete = bool(ending or arguments.strip())
    if not complete:
        yield CutOff()
        return ""
    yield CallBegin(name)
    yield CallArguments(arguments.strip() or "{}")
    yield CallEnd()
    return ending


_INVOKE = InvokeDialect("atem:", sections=("atem:function_calls",))


def _atem_address(header: str, tools: ToolTable) -> _Address:
    if _role(header) != "assistant":
        return _Address("nobody")
    recipient = _recipient(header)
    if recipient == "self":
        return _Address("thinking")
    return _Address("user") if recipient in ("", "user") else _Address("tool", recipient)


def _read_atem_call(source: Source, name: str, tools: ToolTable, boundary: MarkerScanner) -> Reader[str]:
    """The name is written again in the body, and the body may hold several calls."""
    scanner = MarkerScanner((*boundary.markers, _INVOKE.open))
    while True:
        _, found = yield from take_until(source, scanner)
        if found != _INVOKE.open:
            return found
        yield from _INVOKE.read(source, found, tools)


_HARMONY = _Envelope(
    ends=("<|end|>", "<|return|>", "<|call|>"),
    restarts=(_START, _CHANNEL),
    address=_harmony_address,
    read_call=_read_harmony_call,
)
_ATEM = _Envelope(ends=("<|eom|>", "<|eot|>"), restarts=(_START,), address=_atem_address, read_call=_read_atem_call)

HARMONY = ToolFormat(
    name="harmony",
    read=_HARMONY.read,
    delimiters=(*_HARMONY.delimiters, "<|constrain|>"),
    owns_output=True,
)
ATEM = ToolFormat(
    name="atem",
    read=_ATEM.read,
    delimiters=(*_ATEM.delimiters, _INVOKE.open, *_INVOKE.sections, *_INVOKE.delimiters),
    owns_output=True,
)
