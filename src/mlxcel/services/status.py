"""Liveness, slots and counters, as neutral data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.core.errors import ModelLoading
from mlxcel.engine.stats import EngineStats, SlotStatus
from mlxcel.engine.worker import WorkerState
from mlxcel.observe.metrics import Gauges
from mlxcel.services.model import ServedModel

HealthState = Literal["ok", "no slot available", "loading model"]


@dataclass(frozen=True, slots=True)
class Health:
    """``model`` and everything after it is None while the model loads."""

    state: HealthState
    model: str | None = None
    stats: EngineStats | None = None
    context_tokens: int = 0
    parses_tools: bool = False


class StatusService:
    """Answers about the server itself; never waits for the engine, except to reset the cache."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.started_s = time.time()

    def health(self) -> Health:
        """The state of the one served model."""
        try:
            stats = self.model.client.stats()
        except ModelLoading:
            return Health("loading model")
        busy = stats.active_sequences >= stats.max_batch_size
        return Health(
            "no slot available" if busy else "ok",
            self.model.name,
            stats,
            self.model.context_tokens,
            self.model.template.supports_tools,
        )

    def gauges(self) -> Gauges:
        """The engine's figures for a scrape; zeros while the model loads."""
        try:
            stats, cache = self.model.client.stats(), self.cache_stats()
        except ModelLoading:
            return Gauges()
        return Gauges(
            slots_total=stats.max_batch_size,
            slots_available=stats.max_batch_size - stats.active_sequences,
            queue_depth=stats.queue_depth,
            batch_sequences_started=stats.sequences_started,
            batch_sequences_completed=stats.sequences_completed,
            batch_prefill_tokens=stats.total_prefill_tokens,
            batch_decode_tokens=stats.total_decode_tokens,
            batch_current_size=stats.current_batch_size,
            cache_pool_active=stats.cache_pool_active,
            prompt_cache_hits=cache["hits"],
            prompt_cache_lookups=cache["lookups"],
            prompt_cache_bytes=cache["bytes"],
            preemptions=stats.preemptions,
        )

    @property
    def slot_count(self) -> int:
        """Requests that run at once.

        Raises:
            ModelLoading: the model is not ready.
        """
        return self.model.client.stats().max_batch_size

    @property
    def is_sleeping(self) -> bool:
        """True while the idle model is out of memory."""
        return self.model.client.state is WorkerState.ASLEEP

    def slots(self) -> tuple[SlotStatus, ...]:
        """Every slot, then every queued request.

        Raises:
            ModelLoading: the model is not ready.
        """
        return self.model.client.stats().slots

    def cache_stats(self) -> dict[str, Any]:
        """The prompt-cache counters under their documented names."""
        return self.model.client.cache_stats()

    async def cache_reset(self) -> dict[str, Any]:
        """Drop every cached prefix; returns what was freed."""
        return await self.model.client.cache_reset()
