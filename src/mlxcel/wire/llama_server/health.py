"""GET /health (and GET /): the reference's body."""

from __future__ import annotations

from typing import Any

from mlxcel.engine.stats import EngineStats


def render_health(
    state: str, model: str | None, stats: EngineStats | None, context_tokens: int, parses_tools: bool
) -> dict[str, Any]:
    """The body; only ``status`` while the model loads, and no figures of an engine where nothing generates."""
    if model is None:
        return {"status": state}
    if stats is None:
        return {"status": state, "model": model}
    return {
        "status": state,
        "model": model,
        "batch": {
            "active_sequences": stats.active_sequences,
            "queue_depth": stats.queue_depth,
            "max_batch_size": stats.max_batch_size,
        },
        "observability": {
            "sequences_started": stats.sequences_started,
            "sequences_completed": stats.sequences_completed,
            "total_prefill_tokens": stats.total_prefill_tokens,
            "total_decode_tokens": stats.total_decode_tokens,
            "decode_steps_processed": stats.decode_steps_processed,
            "prefill_chunks_processed": stats.prefill_chunks_processed,
            "current_batch_size": stats.current_batch_size,
            "cache_pool_active": stats.cache_pool_active,
        },
        "context_size": context_tokens,
        "tool_call_parser": "mlxcel" if parses_tools else None,
    }
