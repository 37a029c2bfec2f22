"""Text that arrives in pieces, and the small steps from which the readers of all formats are made.

A reader is a generator. It yields the pieces it has recognised, and None when it needs more text; it is resumed when more
has come or the output has ended. So every reader is written straight down, as if the whole text were there, and works the
same whether the text comes whole or one character at a time. Each character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from mlxcel.text.markers import MarkerScanner
from mlxcel.text.reasoning import Segment

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\s\"'<>{}()\[\]]+")
_MAX_NAME_CHARS = 256
MAX_LOOKAHEAD_SPACE = 256
# After so many false starts in one answer a delimiter is not tried again, which bounds the work on hostile text.
MAX_FALSE_STARTS = 512


@dataclass(frozen=True, slots=True)
class Text:
    """Visible text inside a region that a reader owns."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call whose name is known. ``id`` is the model's own, where the family has one."""

    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the open call's arguments text."""

    fragment: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The open call is complete."""


@dataclass(frozen=True, slots=True)
class NotACall:
    """What was read since the delimiter is ordinary text, the delimiter included."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """What was read since the delimiter was meant as a call but is none; its markup must not be shown."""


@dataclass(frozen=True, slots=True)
class CutOff:
    """The output ended inside a call."""


Piece = Text | Segment | CallBegin | CallArguments | CallEnd | NotACall | Malformed | CutOff
T = TypeVar("T")
Reader = Generator[Piece | None, None, T]


class Source:
    """Output not read yet. ``text[pos:]`` is what lies ahead; only :meth:`take` moves ``pos``."""

    __slots__ = ("_taken", "closed", "last_char", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.closed = False
        self.last_char = "\n"  # the character consumed last; the output begins a line
        self._taken: list[str] = []

    def feed(self, text: str) -> None:
        self.text = self.text[self.pos :] + text
        self.pos = 0

    @property
    def available(self) -> int:
        """Characters ahead."""
        return len(self.text) - self.pos

    def take(self, count: int) -> str:
        """Consume ``count`` characters."""
        taken = self.text[self.pos : self.pos + count]
        if taken:
            self.pos += len(taken)
            self.last_char = taken[-1]
            self._taken.append(taken)
        return taken

    def forget(self) -> None:
        """Start anew what :attr:`taken` remembers."""
        self._taken.clear()

    @property
    def taken(self) -> str:
        """Everything consumed since the last :meth:`forget`."""
        return "".join(self._taken)


def peek(source: Source, count: int) -> Reader[str]:
    """The next ``count`` characters, fewer only at the end of the output."""
    while source.available < count and not source.closed:
        yield None
    return source.text[source.pos : source.pos + count]


def accept(source: Source, *literals: str) -> Reader[str]:
    """Consume and return the literal that comes next; "" when none does. No literal may be the head of another."""
    while True:
        undecided = False
        for literal in literals:
            ahead = source.text[source.pos : source.pos + len(literal)]
            if ahead == literal:
                return source.take(len(literal))
            undecided = undecided or literal.startswith(ahead)
        if source.closed or not undecided:
            return ""
        yield None


def skip_space(source: Source) -> Reader[None]:
    """Consume white space; more than that lies ahead afterwards, unless the output has ended."""
    while True:
        match = _SPACE.match(source.text, source.pos)
        if match is not None and match.end() > source.pos:
            source.take(match.end() - source.pos)
        if source.available or source.closed:
            return
        yield None


def take_until(source: Source, scanner: MarkerScanner) -> Reader[tuple[str, str]]:
    """Consume up to and including a delimiter: ``(text before it, delimiter)``, the latter "" at the end of the output."""
    parts: list[str] = []
    while True:
        text, marker, done = take_some(source, scanner)
        parts.append(text)
        if done:
            return "".join(parts), marker
        yield None


def take_some(source: Source, scanner: MarkerScanner) -> tuple[str, str, bool]:
    """One stretch of :func:`take_until`: ``(text, delimiter, done)``, for callers that pass the text on as it comes."""
    found = scanner.find(source.text, source.pos, final=source.closed)
    if found is not None:
        text = source.take(found[0] - source.pos)
        return text, source.take(len(found[1])), True
    held = 0 if source.closed else scanner.held_chars(source.text, source.pos)
    return source.take(source.available - held), "", source.closed


def comes_next(source: Source, *literals: str) -> Reader[bool]:
    """True when, after any white space, one of ``literals`` or the end of the output follows. Consumes nothing."""
    longest = max(map(len, literals))
    while True:
        match = _SPACE.match(source.text, source.pos)
        start = match.end() if match is not None else source.pos
        ahead = source.text[start : start + longest]
        if any(ahead.startswith(literal) for literal in literals) or start - source.pos > MAX_LOOKAHEAD_SPACE:
            return True
        if source.closed:
            return not ahead
        if not any(literal.startswith(ahead) for literal in literals):
            return False
        yield None


def read_name(source: Source, *ends: str) -> Reader[tuple[str, str] | None]:
    """Read a function name up to and including one of ``ends``: ``(name, delimiter)``.

    Returns None after reporting the fault: text that cannot be a name, or the end of the output.
    """
    yield from skip_space(source)
    while True:
        match = _NAME.match(source.text, source.pos)
        chars = match.end() - source.pos if match is not None else 0
        if chars < source.available or source.closed or chars > _MAX_NAME_CHARS:
            break
        yield None
    name = source.take(min(chars, _MAX_NAME_CHARS))
    yield from skip_space(source)
    delimiter = yield from accept(source, *ends)
    if name and delimiter:
        return name, delimiter
    yield CutOff() if source.closed and not source.available else Malformed()
    return None


def read_line(source: Source, max_chars: int = 256) -> Reader[str | None]:
    """Consume a line and its newline; None, with nothing consumed, when no line of at most ``max_chars`` lies ahead."""
    while True:
        end = source.text.find("\n", source.pos, source.pos + max_chars + 1)
        if end >= 0:
            return source.take(end + 1 - source.pos)[:-1]
        if source.closed or source.available > max_chars:
            return None
        yield None
