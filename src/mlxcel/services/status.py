"""Liveness, slots and counters, as neutral data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from mlxcel.core.errors import ModelLoading
from mlxcel.engine.stats import EngineStats
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

    def cache_stats(self) -> dict[str, Any]:
        """The prompt-cache counters under their documented names."""
        return self.model.client.cache_stats()

    async def cache_reset(self) -> dict[str, Any]:
        """Drop every cached prefix; returns what was freed."""
        return await self.model.client.cache_reset()
