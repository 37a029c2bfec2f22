"""Liveness, slots and counters, as neutral data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxcel.core.errors import ModelLoading, NoModelForRoute
from mlxcel.engine.batches import BatchClient, BatchState
from mlxcel.engine.stats import EngineStats, SlotStatus
from mlxcel.engine.worker import WorkerState
from mlxcel.observe.metrics import Gauges
from mlxcel.services.model import ServedModel

HealthState = Literal["ok", "no slot available", "loading model"]


@dataclass(frozen=True, slots=True)
class Health:
    """``model`` is None while a model loads; ``stats`` are those of a generating model."""

    state: HealthState
    model: str | None = None
    stats: EngineStats | None = None
    context_tokens: int = 0
    parses_tools: bool = False


@dataclass(frozen=True, slots=True)
class SideModel:
    """A model that embeds or ranks. ``facts`` are shown to clients."""

    name: str
    capability: Literal["embedding", "rerank"]
    client: BatchClient[Any]
    facts: Mapping[str, Any] = field(default_factory=dict)


class StatusService:
    """Answers about the server itself; never waits for the engine, except to reset the cache.

    Args:
        served: the generating model, when there is one.
        sides: models that embed or rank.
        restricted_by: the flag that keeps the server to one kind.
        absent: why there is no generating model, for the routes that tell about one.
    """

    def __init__(
        self,
        served: ServedModel | None,
        sides: Sequence[SideModel] = (),
        *,
        restricted_by: str | None = None,
        absent: str = "no model that generates is loaded",
    ) -> None:
        self.served = served
        self.sides = tuple(sides)
        self.restricted_by = restricted_by
        self.started_s = time.time()
        self._absent = absent

    @property
    def model(self) -> ServedModel:
        """The generating model.

        Raises:
            NoModelForRoute: there is none.
        """
        if self.served is None:
            raise NoModelForRoute(self._absent)
        return self.served

    def health(self) -> Health:
        """The state of the generating model; without one, of the others."""
        if self.served is None:
            ready = all(side.client.state is BatchState.READY for side in self.sides)
            return Health("ok", self.sides[0].name) if ready and self.sides else Health("loading model")
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

    def engine_stats(self) -> EngineStats | None:
        """Counters of the generating model's engine; None while it loads, or without one."""
        if self.served is None:
            return None
        try:
            return self.served.client.stats()
        except ModelLoading:
            return None

    def gauges(self) -> Gauges:
        """The engine's figures for a scrape; zeros while the model loads, or without one."""
        if self.served is None:
            return Gauges()
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
            drafted_tokens=stats.drafted_tokens,
            accepted_tokens=stats.accepted_tokens,
        )

    @property
    def slot_count(self) -> int:
        """Requests that run at once; 0 where nothing generates.

        Raises:
            ModelLoading: the model is not ready.
        """
        return 0 if self.served is None else self.served.client.stats().max_batch_size

    @property
    def is_sleeping(self) -> bool:
        """True while the idle model is out of memory."""
        return self.served is not None and self.served.client.state is WorkerState.ASLEEP

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
