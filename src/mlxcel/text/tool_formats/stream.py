"""Separating the calls of one answer from its content, as the text comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mlxcel.core.chat import ToolCall, ToolSpec
from mlxcel.core.events import TextDelta, ToolCallDelta, ToolCallStarted
from mlxcel.text.markers import MarkerScanner
from mlxcel.text.reasoning import MAX_TRIMMED_CHARS, Segment
from mlxcel.text.tool_formats.base import ToolFormat, ToolTable
from mlxcel.text.tool_formats.source import (
    MAX_FALSE_STARTS,
    CallArguments,
    CallBegin,
    CallEnd,
    CutOff,
    Malformed,
    NotACall,
    Piece,
    Reader,
    Source,
    Text,
)

StreamPiece = TextDelta | Segment | ToolCallStarted | ToolCallDelta


@dataclass
class _OpenCall:
    index: int
    id: str
    name: str
    fragments: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A whole answer taken apart."""

    content: str
    calls: tuple[ToolCall, ...]
    reasoning: str = ""
    cut_off: bool = False
    warnings: tuple[str, ...] = ()


class ToolStream:
    """Reads the visible output of one request.

    Markup never becomes content. A tail that could become a delimiter is withheld and released when it turns out to be
    text. White space around calls is dropped; white space between two stretches of text is kept.

    Args:
        fmt: the model family's format.
        tools: the request's functions. With none, text that looks like a call stays text; only the frames of answers are
            dropped, and channels are told apart.
        parallel: False keeps the first call of the answer and drops the others.
    """

    def __init__(self, fmt: ToolFormat, tools: Sequence[ToolSpec], *, parallel: bool = True) -> None:
        self._format = fmt
        self._tools = ToolTable(tools)
        self._parallel = parallel
        self._source = Source()
        self._markers = {marker.text: marker for marker in fmt.markers} if tools else {}
        inner = (text for text, marker in self._markers.items() if marker.where != "start")
        self._scanner = MarkerScanner((*inner, *fmt.frames, *(fmt.noise if tools else ())))
        self._opening = MarkerScanner(self._markers)
        self._markup = MarkerScanner(fmt.marker_texts)
        self._at_start = any(marker.where == "start" for marker in self._markers.values())
        self._reader: Reader[None] | None = None
        if fmt.owns_output:
            self._reader = fmt.read(self._source, "", self._tools)
        self._withheld_space = ""
        self._has_text = False
        self._after_call = False
        self._open: _OpenCall | None = None
        self._calls: list[ToolCall] = []
        self._ids: set[str] = set()
        self._declined = 0  # regions that were text after all
        self._malformed = 0
        self._warnings: list[str] = [fmt.warning] if fmt.warning and tools else []
        self._inside_reasoning = False
        self.cut_off = False
        """The output ended inside a call."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far; after a cut-off answer the last one may have incomplete arguments."""
        return tuple(self._calls)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    @property
    def inside_reasoning(self) -> bool:
        """True while a format with channels of its own is in the thinking channel."""
        return self._inside_reasoning

    def push(self, text: str) -> list[StreamPiece]:
        """Take the next piece of output and return what is certain."""
        if not text:
            return []
        if self._is_plain(text):
            return [TextDelta(text)]
        self._source.feed(text)
        return self._run()

    def finish(self) -> list[StreamPiece]:
        """Return what was withheld; the output has ended."""
        self._source.closed = True
        out = self._run()
        if self._withheld_space and not self._after_call:
            out.append(TextDelta(self._withheld_space))
        self._withheld_space = ""
        return out

    def _is_plain(self, text: str) -> bool:
        """The cheap path: in the middle of text, and nothing in ``text`` can matter."""
        if self._reader is not None or not self._has_text or self._withheld_space or self._source.available:
            return False
        if self._scanner.may_start_in(text) or text[-1].isspace():
            return False
        self._source.last_char = text[-1]
        self._after_call = False
        return True

    def _run(self) -> list[StreamPiece]:
        out: list[StreamPiece] = []
        while self._read_content(out) if self._reader is None else self._resume(self._reader, out):
            pass
        return out

    # ---- content ----------------------------------------------------------------------------------------------------

    def _read_content(self, out: list[StreamPiece]) -> bool:
        """Emit text up to the next delimiter; True when one was met and reading goes on after it."""
        source = self._source
        if self._at_start:
            return self._leave_start(out)
        search_from = source.pos
        while True:
            found = self._scanner.find(source.text, search_from, final=source.closed)
            if found is None:
                held = 0 if source.closed else self._scanner.held_chars(source.text, search_from)
                self._emit_text(source.take(source.available - held), out)
                source.forget()
                return False
            if self._may_begin(*found):
                break
            search_from = found[0] + 1
        self._emit_text(source.take(found[0] - source.pos), out)
        self._begin_region(found[1])
        return True

    def _leave_start(self, out: list[StreamPiece]) -> bool:
        """Skip white space at the very start and see whether a delimiter that is only valid there follows."""
        source = self._source
        ahead = source.text[source.pos :]
        body = ahead.lstrip()
        self._emit_text(source.take(len(ahead) - len(body)), out)
        if not body and not source.closed:
            return False
        found = self._opening.find(source.text, source.pos, final=source.closed)
        if found is not None and found[0] == source.pos:
            self._at_start = False
            self._begin_region(found[1])
            return True
        if body and not source.closed and self._opening.held_chars(body) == len(body):
            return False
        self._at_start = False
        return bool(body)

    def _may_begin(self, offset: int, text: str) -> bool:
        marker = self._markers.get(text)
        if marker is None or marker.where != "line":
            return True
        before = self._source.text[offset - 1] if offset > self._source.pos else self._source.last_char
        return before == "\n"

    def _begin_region(self, marker: str) -> None:
        source = self._source
        source.forget()
        source.take(len(marker))
        if marker not in self._markers or self._malformed >= MAX_FALSE_STARTS:  # noise
            self._withheld_space = ""
            self._after_call = True
            return
        self._reader = self._format.read(source, marker, self._tools)

    def _emit_text(self, text: str, out: list[StreamPiece]) -> None:
        if not text:
            return
        text = self._withheld_space + text
        if self._after_call and not self._has_text:
            text = text.lstrip()
        ready = text[: max(len(text.rstrip()), len(text) - MAX_TRIMMED_CHARS)]
        self._withheld_space = text[len(ready) :]
        if ready:
            self._after_call = False
            self._has_text = True
            out.append(TextDelta(ready))

    # ---- regions ----------------------------------------------------------------------------------------------------

    def _resume(self, reader: Reader[None], out: list[StreamPiece]) -> bool:
        """Let the reader go on; True when its region ended."""
        for piece in reader:
            if piece is None:
                return False
            self._apply(piece, out)
        self._reader = None
        return True

    def _apply(self, piece: Piece, out: list[StreamPiece]) -> None:
        match piece:
            case CallBegin():
                self._begin_call(piece, out)
            case CallArguments(fragment):
                self._extend_call(fragment, out)
            case CallEnd():
                self._end_call()
            case CutOff():
                self.cut_off = self._after_call = True
                self._warn("the output ended inside a tool call")
                self._end_call()
            case NotACall():
                self._give_back(self._source.taken, out)
                self._declined += 1
                if self._declined == MAX_FALSE_STARTS:
                    lines = {marker.text for marker in self._format.markers if marker.where == "line"}
                    self._scanner = MarkerScanner(text for text in self._scanner.markers if text not in lines)
            case Malformed():
                self._warn("the model wrote a malformed tool call; it is returned as text")
                self._give_back(self._without_markup(self._source.taken), out)
                self._malformed += 1
                if self._malformed == 1:  # what is left of the region may hold more of its markup
                    self._scanner = MarkerScanner((*self._scanner.markers, *self._format.delimiters))
            case Text(text):
                self._inside_reasoning = False
                self._emit_text(text, out)
            case Segment():
                self._inside_reasoning = piece.reasoning
                out.append(piece)

    def _warn(self, message: str) -> None:
        if message not in self._warnings:
            self._warnings.append(message)

    def _give_back(self, text: str, out: list[StreamPiece]) -> None:
        self._emit_text(text, out)
        self._source.forget()

    def _begin_call(self, begin: CallBegin, out: list[StreamPiece]) -> None:
        self._inside_reasoning = False
        self._withheld_space = ""
        self._after_call = True
        call_id = begin.id if begin.id and begin.id not in self._ids else self._format.new_id()
        self._ids.add(call_id)
        self._open = _OpenCall(len(self._calls), call_id, self._tools.resolve(begin.name))
        if self._wanted:
            out.append(ToolCallStarted(self._open.index, self._open.id, self._open.name))

    def _extend_call(self, fragment: str, out: list[StreamPiece]) -> None:
        if self._open is None or not fragment:
            return
        self._open.fragments.append(fragment)
        if self._wanted:
            out.append(ToolCallDelta(self._open.index, fragment))

    def _end_call(self) -> None:
        call, self._open = self._open, None
        self._source.forget()
        if call is not None and (self._parallel or not self._calls):
            self._calls.append(ToolCall(call.id, call.name, "".join(call.fragments)))

    @property
    def _wanted(self) -> bool:
        return self._parallel or not self._calls

    def _without_markup(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        while (found := self._markup.find(text, position, final=True)) is not None:
            parts.append(text[position : found[0]])
            position = found[0] + len(found[1])
        return "".join((*parts, text[position:]))


def parse_output(fmt: ToolFormat, text: str, tools: Sequence[ToolSpec], *, parallel: bool = True) -> ParsedOutput:
    """Take a whole answer apart: the stream, folded."""
    stream = ToolStream(fmt, tools, parallel=parallel)
    pieces = [*stream.push(text), *stream.finish()]
    return ParsedOutput(
        content="".join(piece.text for piece in pieces if isinstance(piece, TextDelta)),
        calls=stream.calls,
        reasoning="".join(piece.text for piece in pieces if isinstance(piece, Segment)),
        cut_off=stream.cut_off,
        warnings=stream.warnings,
    )
