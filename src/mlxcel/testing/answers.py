"""Scripted answers: the output events a service would send for a given result."""

from __future__ import annotations

from collections.abc import Sequence

from mlxcel.core.chat import ToolCall
from mlxcel.core.events import (
    Completed,
    FinishReason,
    OutputEvent,
    PieceLogprob,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from mlxcel.core.usage import Timings, Usage


def answer_events(
    text: str = "",
    *,
    reasoning: str = "",
    calls: Sequence[ToolCall] = (),
    reason: FinishReason = FinishReason.EOS,
    stop_string: str | None = None,
    usage: Usage | None = None,
    logprobs: Sequence[PieceLogprob] = (),
    piece_chars: int = 3,
) -> list[OutputEvent]:
    """The events of one answer, text and arguments cut into pieces of ``piece_chars``.

    With ``logprobs`` the text is instead cut at their pieces.
    """
    usage = usage or Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=5, reasoning_tokens=2 if reasoning else 0)
    events: list[OutputEvent] = [Started(usage.prompt_tokens, usage.cached_tokens)]
    events.extend(ReasoningDelta(piece) for piece in _pieces(reasoning, piece_chars))
    if logprobs:
        events.extend(TextDelta(piece.text, (piece,)) for piece in logprobs)
    else:
        events.extend(TextDelta(piece) for piece in _pieces(text, piece_chars))
    for index, call in enumerate(calls):
        events.append(ToolCallStarted(index, call.id, call.name))
        events.extend(ToolCallDelta(index, piece) for piece in _pieces(call.arguments, piece_chars))
    events.append(
        Completed(
            reason=FinishReason.TOOL_CALLS if calls and reason is FinishReason.EOS else reason,
            text=text,
            usage=usage,
            timings=Timings(),
            reasoning=reasoning,
            tool_calls=tuple(calls),
            stop_string=stop_string,
            logprobs=tuple(logprobs),
        )
    )
    return events


def _pieces(text: str, chars: int) -> list[str]:
    return [text[start : start + chars] for start in range(0, len(text), chars)]
