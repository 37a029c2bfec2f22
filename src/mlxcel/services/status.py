"""Liveness, slots and counters, as neutral data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from mlxcel.core.errors import MlxcelError, ModelLoading
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
    """Answers about the server itself; never waits for the engine."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self.started_s = time.time()

    def health(self) -> Health:
        """The state of the one served model."""
        if not self._model.client.is_ready:
            return Health("loading model")
        stats = self._model.client.stats()
        busy = stats.active_sequences >= stats.max_batch_size
        return Health(
            "no slot available" if busy else "ok",
            self._model.name,
            stats,
            self._model.context_tokens,
            self._model.tool_format is not None,
        )

    @property
    def model(self) -> ServedModel:
        return self._model

    def require_ready(self) -> None:
        """
        Raises:
            ModelLoading: the model is not ready yet.
        """
        if not self._model.client.is_ready:
            raise ModelLoading

    def failure(self) -> MlxcelError | None:
        """Why the model cannot serve any more, if so."""
        return self._model.client.failure
