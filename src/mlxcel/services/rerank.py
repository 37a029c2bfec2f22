"""Documents scored against a query."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from mlxcel.core.errors import GenerationFailed, InvalidRequest
from mlxcel.core.vectors import Ranked, Ranking, RankItem, RerankerInfo, RerankJob
from mlxcel.engine.batches import BatchClient
from mlxcel.text.vector_tokens import EncodedRow


class PairEncoder(Protocol):
    """Writes a query and each document in the form that the model was trained on."""

    def encode(self, query: str, documents: Sequence[str], instruction: str | None) -> list[EncodedRow]:
        """One row a document. May be used from several threads."""


@dataclass(frozen=True, slots=True)
class ServedReranker:
    """A loaded reranker as the service sees it; its results are logits."""

    name: str
    info: RerankerInfo
    encoder: PairEncoder
    client: BatchClient[float]


class RerankService:
    """Ranks with one model.

    Args:
        model: what serves the scores.
        pool: threads for tokenising.
    """

    def __init__(self, model: ServedReranker, pool: Executor) -> None:
        self.model = model
        self._pool = pool

    async def rank(self, job: RerankJob) -> Ranking:
        """The documents, best first.

        Raises:
            InvalidRequest: an item or a setting that the model cannot take.
            ServerBusy: the queue is full.
            ModelLoading: the model is not ready.
            TimedOut: the model took too long.
            GenerationFailed: the model failed, or a score is not finite.
        """
        query, documents = self._texts(job)
        loop = asyncio.get_running_loop()
        encode = self.model.encoder.encode
        encoded = await loop.run_in_executor(self._pool, encode, query, documents, job.instruction)
        logits = await self.model.client.run([entry.row for entry in encoded])
        if not all(math.isfinite(logit) for logit in logits):
            raise GenerationFailed("the model computed a score that is not finite")
        scores = logits if job.raw else [sigmoid(logit) for logit in logits]
        order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
        return Ranking(
            results=tuple(Ranked(index, scores[index]) for index in order[: job.top_n]),
            prompt_tokens=sum(len(entry.row.token_ids) for entry in encoded),
            truncated=tuple(index for index, entry in enumerate(encoded) if entry.truncated),
        )

    def _texts(self, job: RerankJob) -> tuple[str, list[str]]:
        if job.top_n is not None and job.top_n < 1:
            raise InvalidRequest("'top_n' must be at least 1", param="top_n")
        if job.instruction is not None and self.model.info.kind == "sequence_classifier":
            raise InvalidRequest(f"'instruction': the model {self.model.name} reads no instruction", param="instruction")
        documents = [self._text(item, f"documents[{index}]") for index, item in enumerate(job.documents)]
        return self._text(job.query, "query"), documents

    def _text(self, item: RankItem, name: str) -> str:
        if item.image is not None:
            raise InvalidRequest(f"'{name}': the model {self.model.name} takes text only", param=name)
        if item.text is None:
            raise InvalidRequest(f"'{name}' has neither text nor an image", param=name)
        return item.text


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-x)) without overflow."""
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1.0 + power)
