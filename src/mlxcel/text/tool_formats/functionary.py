r"""Functionary v3.2: every message is ``>>>RECIPIENT\n`` and a body; the recipient ``all`` is the user.

The prompt already ends in ``>>>``, so the output begins with a recipient.
"""

from __future__ import annotations

import re

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.tool_formats.base import ToolFormat, ToolTable
from mlxcel.text.tool_formats.json_text import read_json_value
from mlxcel.text.tool_formats.source import (
    MAX_FALSE_STARTS,
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Reader,
    Source,
    Text,
    accept,
    peek,
    read_line,
    skip_space,
    take_some,
)

_PROMPT, _EVERYONE = ">>>", "all"
_SCANNER = MarkerScanner((_PROMPT,))
_NEVER = MarkerScanner(())
_NAME = re.compile(r"[\w.\-]+")


def _read(source: Source, marker: str, tools: ToolTable) -> Reader[None]:
    yield from accept(source, _PROMPT)
    opening = ""  # what to give back as text when no recipient follows
    false_starts = 0
    while True:
        recipient = yield from read_line(source)
        if recipient is None or not _is_recipient(recipient, tools):
            false_starts += 1
            yield Text(opening + (recipient + "\n" if recipient is not None else ""))
        elif recipient != _EVERYONE and not (yield from _read_call(source, recipient)):
            return
        opening = yield from _read_text(source, _SCANNER if false_starts < MAX_FALSE_STARTS else _NEVER)
        if not opening:
            return


def _is_recipient(line: str, tools: ToolTable) -> bool:
    return line == _EVERYONE or (_NAME.fullmatch(line) is not None and tools.declares(line))


def _read_text(source: Source, scanner: MarkerScanner) -> Reader[str]:
    """Pass text on up to the next ``>>>`` and return that; "" at the end of the output."""
    while True:
        text, found, done = take_some(source, scanner)
        if text:
            yield Text(text)
        if done:
            return found
        yield None


def _read_call(source: Source, name: str) -> Reader[bool]:
    """Read the JSON body of a call; any other body is left to be read as text."""
    yield from skip_space(source)
    if (yield from peek(source, 1)) != "{":
        return True
    arguments, complete = yield from read_json_value(source)
    if not complete:
        yield CutOff()
        return False
    yield CallBegin(name)
    yield CallArguments(arguments)
    yield CallEnd()
    return True


FUNCTIONARY_V32 = ToolFormat(name="functionary_v3.2", read=_read, delimiters=(_PROMPT,), owns_output=True)
