"""Separating a model's thinking from its answer.

Families whose thinking is a block between two delimiters are rows of one table. Families whose whole output is a sequence of
addressed messages (Harmony, ATEM) are read by ``tool_formats/`` because calls travel in the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.text.markers import MarkerScanner


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The delimiters of one family's thinking block.

    Attributes:
        name: for logs and tests.
        open: begins the block.
        close: ends it.
        anywhere: the delimiters cannot be written by accident (control tokens), so a block may begin in mid-answer. Plain
            tags such as ``<think>`` open a block only at the start of the output: later they are text about tags.
        label: a word after ``open`` that belongs to the markup.
    """

    name: str
    open: str
    close: str
    anywhere: bool = False
    label: str = ""


REASONING_MARKERS = (
    ReasoningMarkers("gemma4", "<|channel>", "<channel|>", anywhere=True, label="thought"),
    ReasoningMarkers("command", "<|START_THINKING|>", "<|END_THINKING|>", anywhere=True),
    ReasoningMarkers("apertus", "<|inner_prefix|>", "<|inner_suffix|>", anywhere=True),
    ReasoningMarkers("seed", "<seed:think>", "</seed:think>"),
    ReasoningMarkers("minimax_m3", "<mm:think>", "</mm:think>"),
    ReasoningMarkers("longcat", "<longcat_think>", "</longcat_think>"),
    ReasoningMarkers("magistral", "[THINK]", "[/THINK]"),
    ReasoningMarkers("think", "<think>", "</think>"),
)


def detect_reasoning(chat_template: str, token_id: Callable[[str], int | None]) -> ReasoningMarkers | None:
    """Choose the thinking delimiters of a loaded model.

    A template that names the closing delimiter decides. Otherwise both delimiters must be tokens of the vocabulary.

    Args:
        chat_template: Jinja source, empty when the model has none.
        token_id: the id of a token given its text, None when the vocabulary has no such token.
    """
    for markers in REASONING_MARKERS:
        if markers.close in chat_template:
            return markers
    for markers in REASONING_MARKERS:
        if token_id(markers.open) is not None and token_id(markers.close) is not None:
            return markers
    return None


MAX_TRIMMED_CHARS = 256  # white space beyond this is text: what is withheld stays bounded


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of output of one channel.

    ``text`` is what a client should see; ``raw`` is what the model wrote, delimiters and trimmed white space included.
    """

    reasoning: bool
    text: str
    raw: str


class ReasoningSplitter:
    """Splits one answer into thinking and visible text, piece by piece.

    A tail that could become a delimiter is withheld. Newlines after the opening delimiter, white space before the closing
    one, and newlines between it and the answer are dropped from ``Segment.text``, as clients of such models expect.

    Args:
        markers: the family's delimiters.
        starts_inside: the prompt already opened the block.
        implicit_ends: delimiters of something that cannot occur in thinking (a section of calls); they end the block and
            are left in the text that follows.
    """

    def __init__(
        self, markers: ReasoningMarkers, *, starts_inside: bool = False, implicit_ends: Sequence[str] = ()
    ) -> None:
        self._open, self._close = markers.open, markers.close
        self._anywhere = markers.anywhere
        self._label = markers.label
        self._expects_label = False
        self._inner = MarkerScanner((markers.close, *implicit_ends))
        self._outer = MarkerScanner((markers.open, markers.close) if markers.anywhere else (markers.close,))
        self._inside = starts_inside
        self._at_start = True  # nothing but white space has come since the output began
        self._seen_block = starts_inside
        self._trim_newlines = starts_inside
        self._held = ""  # a possible delimiter, and while thinking the white space before it

    @property
    def inside(self) -> bool:
        """True while the block is open."""
        return self._inside

    def push(self, text: str) -> list[Segment]:
        """Take the next piece of output and return what is certain."""
        if not self._inside and not self._at_start and not self._held and not self._trim_newlines:
            if self._seen_block and not self._anywhere:
                return [Segment(False, text, text)]
            if not self._outer.may_start_in(text):
                return [Segment(False, text, text)]
        self._held += text
        return self._advance(final=False)

    def finish(self) -> list[Segment]:
        """Return what was withheld; the output has ended."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> list[Segment]:
        segments: list[Segment] = []
        while self._step(segments, final):
            pass
        return segments

    def _step(self, segments: list[Segment], final: bool) -> bool:
        """Do one transition; True when there may be another."""
        if self._at_start:
            return self._leave_start(segments, final)
        if self._inside:
            return self._read_thinking(segments, final)
        return self._read_answer(segments, final)

    def _leave_start(self, segments: list[Segment], final: bool) -> bool:
        """Decide what the output begins with."""
        stripped = self._held.lstrip()
        if len(self._held) - len(stripped) > MAX_TRIMMED_CHARS:
            self._at_start = False
            return True
        for marker in (self._open, self._close):
            if stripped.startswith(marker):
                self._at_start = False
                cut = len(self._held) - len(stripped) + len(marker)
                self._cross(segments, cut, into_thinking=marker == self._open)
                return True
            if not final and marker.startswith(stripped):
                return False
        self._at_start = False
        if self._inside:  # the prompt holds the opening delimiter; who reads the raw text needs it too
            segments.append(Segment(True, "", self._open))
        return True

    def _cross(self, segments: list[Segment], cut: int, *, into_thinking: bool) -> None:
        """Consume ``cut`` characters that hold a delimiter and change sides."""
        segments.append(Segment(True, "", self._held[:cut]))
        self._held = self._held[cut:]
        self._inside = into_thinking
        self._expects_label = into_thinking and bool(self._label)
        self._seen_block = True
        self._trim_newlines = True

    def _read_thinking(self, segments: list[Segment], final: bool) -> bool:
        if self._expects_label:
            if not final and self._label.startswith(self._held) and self._held != self._label:
                return False
            self._expects_label = False
            if self._held.startswith(self._label):
                segments.append(Segment(True, "", self._label))
                self._held = self._held[len(self._label) :]
        self._trim(segments, reasoning=True)
        found = self._inner.find(self._held, final=final)
        if found is not None:
            offset, marker = found
            thought = self._held[:offset]
            segments.append(Segment(True, _trim_end(thought), thought))
            self._held = self._held[offset:]
            self._cross(segments, len(marker) if marker == self._close else 0, into_thinking=False)
            return True
        keep = 0 if final else self._inner.held_chars(self._held)
        ready = _trim_end(self._held[: len(self._held) - keep])
        if ready:
            segments.append(Segment(True, ready, ready))
            self._held = self._held[len(ready) :]
        if final and self._held:
            segments.append(Segment(True, "", self._held))
            self._held = ""
        return False

    def _read_answer(self, segments: list[Segment], final: bool) -> bool:
        self._trim(segments, reasoning=False)
        scan = self._anywhere or not self._seen_block
        found = self._outer.find(self._held, final=final) if scan else None
        if found is not None:
            offset, marker = found
            if offset:
                segments.append(Segment(False, self._held[:offset], self._held[:offset]))
            self._held = self._held[offset:]
            self._cross(segments, len(marker), into_thinking=marker == self._open)
            return True
        keep = self._outer.held_chars(self._held) if scan and not final else 0
        ready = self._held[: len(self._held) - keep]
        if ready:
            segments.append(Segment(False, ready, ready))
            self._held = self._held[len(ready) :]
        return False

    def _trim(self, segments: list[Segment], *, reasoning: bool) -> None:
        """Drop the newlines that follow a delimiter."""
        if not self._trim_newlines or not self._held:
            return
        kept = self._held.lstrip("\r\n")
        if len(kept) < len(self._held):
            segments.append(Segment(reasoning, "", self._held[: len(self._held) - len(kept)]))
            self._held = kept
        self._trim_newlines = not kept


def _trim_end(text: str) -> str:
    return text[: max(len(text.rstrip()), len(text) - MAX_TRIMMED_CHARS)]
