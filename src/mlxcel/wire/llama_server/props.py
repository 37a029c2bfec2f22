"""GET /props and GET /slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlxcel.core.jobs import GenerationOptions
from mlxcel.engine.stats import SlotStatus

SEED_UNSET = 2**64 - 1
_STATES = {"prefill": "decoding"}  # the documented states know no separate prefill


def render_props(options: GenerationOptions, slots: int, extra: dict[str, Any]) -> dict[str, Any]:
    """The documented settings and slot count, then what llama-server clients look for besides."""
    sampling = options.sampling
    settings = {
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_context_tokens,
        "seed": SEED_UNSET if sampling.seed is None else sampling.seed,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
    }
    return {"default_generation_settings": settings, "total_slots": slots} | extra


def render_capabilities(
    *, generates: bool, restricted_by: str | None, sides: Sequence[tuple[str, dict[str, Any]]]
) -> dict[str, Any]:
    """What the server serves: generation, the flag that restricts it, and each embedding or reranking model."""
    served = dict(sides)
    return {
        "completion": generates,
        "restricted_by": restricted_by,
        "embedding": served.get("embedding"),
        "rerank": served.get("rerank"),
    }


def render_slots(slots: Sequence[SlotStatus], model: str, context_tokens: int) -> list[dict[str, Any]]:
    """One object a slot, and after them one for each queued request."""
    return [
        {
            "id": slot.id,
            "state": _STATES.get(slot.state, slot.state),
            "model": model,
            "context_size": context_tokens,
            "is_processing": slot.state in ("prefill", "decoding"),
        }
        for slot in slots
    ]
