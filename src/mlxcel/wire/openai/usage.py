"""Usage, finish reasons and timings in the words of the OpenAI routes."""

from __future__ import annotations

from typing import Any

from mlxcel.core.events import FinishReason
from mlxcel.core.usage import Timings, Usage
from mlxcel.wire.timings import timings_object

_FINISH = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LOOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CANCELLED: "stop",
    FinishReason.ERROR: "error",
}


def finish_word(reason: FinishReason) -> str:
    """``finish_reason`` of chat and completions."""
    return _FINISH[reason]


def usage_object(usage: Usage) -> dict[str, Any]:
    """``usage`` of chat and completions."""
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return body


def draft_timings(usage: Usage, timings: Timings) -> dict[str, Any] | None:
    """``timings`` of an answer that ran speculative verify rounds; None otherwise (plain decode has none)."""
    if timings.draft is None or timings.draft.rounds == 0:
        return None
    return timings_object(usage, timings)
