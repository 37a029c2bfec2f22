"""From generated tokens to what a client sees: text, thinking and tool calls.

The one composition every generating surface uses::

    token ids -> detokenizer -> stop strings -> thinking | answer -> tool calls | content

A non-streaming answer is the same stream folded, so the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from mlxcel.core.chat import ToolCall
from mlxcel.core.events import (
    FinishReason,
    PieceLogprob,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.text.reasoning import ReasoningSplitter, Segment
from mlxcel.text.tool_formats.stream import StreamPiece, ToolStream

OutputPiece = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta
ReasoningFormat = Literal["none", "deepseek", "deepseek-legacy", "auto"]


class TextSource(Protocol):
    """An incremental detokenizer: never yields half a character."""

    def push(self, ids: Sequence[int], /) -> str:
        """Text that the new tokens complete."""

    def flush(self) -> str:
        """Text of an unfinished tail."""


class StopStrings(Protocol):
    """Looks for stop strings and withholds a tail that could become one."""

    def push(self, text: str, /) -> tuple[str, str | None]:
        """Return ``(text before any stop string, the stop string met or None)``."""

    def flush(self) -> str:
        """The withheld tail, when the output ends without a stop string."""


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """The end of an answer: ``pieces`` are the last ones to stream, the rest is everything folded."""

    pieces: tuple[OutputPiece, ...]
    reason: FinishReason
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    stop_string: str | None
    token_ids: tuple[int, ...]
    logprobs: tuple[PieceLogprob, ...]
    reasoning_tokens: int
    warnings: tuple[str, ...]


class OutputParser:
    """Parses the output of one request.

    Args:
        detokenizer: of this request alone; it must render the delimiters (``keep_special``), which are often control tokens.
        stops: the request's stop strings, None without any. They are matched on the raw output, so inside thinking and
            calls too.
        reasoning: splits off thinking; None leaves it in the text.
        tools: finds calls in the visible text; None leaves them in the text. Formats with channels of their own split off
            thinking too and need no ``reasoning``.
        reasoning_format: "deepseek" and "auto" report thinking apart; "none" leaves it in the text with its delimiters;
            "deepseek-legacy" does both.
        with_token_ids: report token ids with the text, one piece a token.
    """

    def __init__(
        self,
        detokenizer: TextSource,
        stops: StopStrings | None = None,
        *,
        reasoning: ReasoningSplitter | None = None,
        tools: ToolStream | None = None,
        reasoning_format: ReasoningFormat = "auto",
        with_token_ids: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._reasoning = reasoning
        self._tools = tools
        self._thinking_apart = reasoning_format != "none"
        self._thinking_in_text = reasoning_format in ("none", "deepseek-legacy")
        self._with_token_ids = with_token_ids
        self._stop_string: str | None = None
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PieceLogprob] = []
        self._reasoning_tokens = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that was met; nothing after it counts, and the caller should end the generation."""
        return self._stop_string

    @property
    def token_count(self) -> int:
        """Tokens taken so far; those after a stop string do not count."""
        return len(self._token_ids)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that came while a thinking block was open, its closing delimiter included."""
        return self._reasoning_tokens

    def push(self, token_ids: Sequence[int], logprobs: Sequence[PieceLogprob] = ()) -> list[OutputPiece]:
        """Take newly generated tokens.

        Args:
            token_ids: in order; end-of-generation tokens are not among them.
            logprobs: empty, or one entry a token. Each entry is then reported with exactly one piece: a token that only
                yields markup, or text withheld for now, gets a :class:`TextDelta` without text.
        """
        pieces: list[OutputPiece] = []
        for index, token_id in enumerate(token_ids):
            if self._stop_string is not None:
                break
            self._token_ids.append(token_id)
            if self._inside_reasoning:
                self._reasoning_tokens += 1
            found = self._parse(self._detokenizer.push((token_id,)))
            if logprobs:
                self._logprobs.append(logprobs[index])
            if logprobs or self._with_token_ids:
                pieces += self._annotate(found, token_id, logprobs[index : index + 1])
            else:
                _append_merged(pieces, found)
        return pieces

    def finish(self, reason: FinishReason) -> OutputEnd:
        """End the answer: release what was withheld and fold everything.

        Args:
            reason: as the engine gave it. It becomes TOOL_CALLS when the answer has calls, unless the token limit cut one
                off.
        """
        pieces: list[OutputPiece] = []
        if self._stop_string is None:
            _append_merged(pieces, self._parse(self._detokenizer.flush()))
        if self._stop_string is None and self._stops is not None:
            _append_merged(pieces, self._split(self._stops.flush()))
        if self._reasoning is not None:
            for segment in self._reasoning.finish():
                _append_merged(pieces, self._route(segment))
        if self._tools is not None:
            _append_merged(pieces, self._take(self._tools.finish()))
        calls = self._tools.calls if self._tools is not None else ()
        return OutputEnd(
            pieces=tuple(pieces),
            reason=self._final_reason(reason, has_calls=bool(calls)),
            text="".join(self._text),
            reasoning="".join(self._thinking),
            tool_calls=calls,
            stop_string=self._stop_string,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            reasoning_tokens=self._reasoning_tokens,
            warnings=self._tools.warnings if self._tools is not None else (),
        )

    @property
    def _inside_reasoning(self) -> bool:
        if self._reasoning is not None:
            return self._reasoning.inside
        return self._tools is not None and self._tools.inside_reasoning

    def _final_reason(self, reason: FinishReason, *, has_calls: bool) -> FinishReason:
        if self._stop_string is not None and reason is not FinishReason.ERROR:
            reason = FinishReason.STOP_STRING
        if not has_calls or reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            return reason
        if reason is FinishReason.LENGTH and self._tools is not None and self._tools.cut_off:
            return reason
        return FinishReason.TOOL_CALLS

    def _parse(self, text: str) -> list[OutputPiece]:
        if text and self._stops is not None:
            text, self._stop_string = self._stops.push(text)
        return self._split(text)

    def _split(self, text: str) -> list[OutputPiece]:
        if not text:
            return []
        if self._reasoning is None:
            return self._read_answer(text)
        segments = self._reasoning.push(text)
        if len(segments) == 1:
            return self._route(segments[0])
        return [piece for segment in segments for piece in self._route(segment)]

    def _route(self, segment: Segment) -> list[OutputPiece]:
        if not segment.reasoning:
            text = segment.raw if self._thinking_in_text else segment.text
            return self._read_answer(text) if text else []
        return self._think(segment)

    def _think(self, segment: Segment) -> list[OutputPiece]:
        pieces: list[OutputPiece] = []
        if self._thinking_apart and segment.text:
            self._thinking.append(segment.text)
            pieces.append(ReasoningDelta(segment.text))
        if self._thinking_in_text and segment.raw:
            self._text.append(segment.raw)
            pieces.append(TextDelta(segment.raw))
        return pieces

    def _read_answer(self, text: str) -> list[OutputPiece]:
        if self._tools is None:
            self._text.append(text)
            return [TextDelta(text)]
        return self._take(self._tools.push(text))

    def _take(self, found: list[StreamPiece]) -> list[OutputPiece]:
        pieces: list[OutputPiece] = []
        for piece in found:
            if isinstance(piece, Segment):
                pieces += self._think(piece) if piece.reasoning else ()
                continue
            if isinstance(piece, TextDelta):
                self._text.append(piece.text)
            pieces.append(piece)
        return pieces

    def _annotate(
        self, pieces: list[OutputPiece], token_id: int, logprobs: Sequence[PieceLogprob]
    ) -> list[OutputPiece]:
        """Hang the token's log-probability and id on the first piece with text, or on an empty one."""
        entry = tuple(logprobs)
        ids = (token_id,) if self._with_token_ids else ()
        for index, piece in enumerate(pieces):
            if isinstance(piece, TextDelta):
                pieces[index] = TextDelta(piece.text, entry, ids)
                return pieces
            if isinstance(piece, ReasoningDelta) and not ids:
                pieces[index] = ReasoningDelta(piece.text, entry)
                return pieces
        return [TextDelta("", entry, ids), *pieces]


def _append_merged(pieces: list[OutputPiece], found: list[OutputPiece]) -> None:
    """Append, joining neighbouring stretches of the same channel."""
    for piece in found:
        last = pieces[-1] if pieces else None
        if isinstance(piece, TextDelta) and isinstance(last, TextDelta):
            pieces[-1] = TextDelta(last.text + piece.text)
        elif isinstance(piece, ReasoningDelta) and isinstance(last, ReasoningDelta):
            pieces[-1] = ReasoningDelta(last.text + piece.text)
        elif isinstance(piece, ToolCallDelta) and isinstance(last, ToolCallDelta) and piece.index == last.index:
            pieces[-1] = ToolCallDelta(last.index, last.fragment + piece.fragment)
        else:
            pieces.append(piece)
