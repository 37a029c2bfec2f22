"""llama-server's ``timings`` object, which several surfaces show."""

from __future__ import annotations

from typing import Any

from mlxcel.core.usage import Timings, Usage


def timings_object(usage: Usage, timings: Timings) -> dict[str, Any]:
    """llama-server's ``timings``: milliseconds and rates; generation rates divide by the tokens after the first."""
    evaluated = usage.prompt_tokens - usage.cached_tokens
    predicted = usage.completion_tokens
    prompt_ms, predicted_ms = timings.prefill_s * 1000, timings.decode_s * 1000
    steps = predicted - 1
    body: dict[str, Any] = {
        "cache_n": usage.cached_tokens,
        "prompt_n": evaluated,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / evaluated if evaluated else 0.0,
        "prompt_per_second": evaluated / timings.prefill_s if timings.prefill_s else 0.0,
        "predicted_n": predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / steps if steps > 0 else 0.0,
        "predicted_per_second": steps / timings.decode_s if steps > 0 and timings.decode_s else 0.0,
    }
    if timings.draft is not None:
        body |= {
            "draft_n": timings.draft.drafted_tokens,
            "draft_n_accepted": timings.draft.accepted_tokens,
            "draft_rounds": timings.draft.rounds,
            "draft_kind": timings.draft.kind,
        }
    return body
