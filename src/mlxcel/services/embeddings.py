"""Texts and token ids to vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from mlxcel.core.chat import MediaPart, TextPart
from mlxcel.core.errors import InvalidRequest
from mlxcel.core.vectors import EmbedderInfo, Embeddings, EmbedInput, EmbedJob, TokensPart, Vector
from mlxcel.engine.batches import BatchClient
from mlxcel.services.vectors import check_norm, finish
from mlxcel.text.vector_tokens import EncodedRow, RowTokenizer

Format = Callable[[str, str | None], str]  # (text, instruction) -> the model's input


@dataclass(frozen=True, slots=True)
class ServedEmbedder:
    """A loaded embedding model as the service sees it.

    Attributes:
        format: puts an instruction where the family's prompts have it.
    """

    name: str
    info: EmbedderInfo
    tokenizer: RowTokenizer
    format: Format
    client: BatchClient[Vector]


class EmbeddingService:
    """Embeds with one model.

    Args:
        model: what serves the vectors.
        pool: threads for tokenising and scaling, which would hold up the event loop.
    """

    def __init__(self, model: ServedEmbedder, pool: Executor) -> None:
        self.model = model
        self._pool = pool

    async def embed(self, job: EmbedJob) -> Embeddings:
        """Vectors of a job's inputs.

        Raises:
            InvalidRequest: an input or a setting that the model cannot take.
            ServerBusy: the queue is full.
            ModelLoading: the model is not ready.
            TimedOut: the model took too long.
            GenerationFailed: the model failed.
        """
        self._check(job)
        loop = asyncio.get_running_loop()
        encoded = await loop.run_in_executor(self._pool, self._encode, job)
        raw = await self.model.client.run([entry.row for entry in encoded])
        vectors = await loop.run_in_executor(self._pool, self._finish, raw, job)
        return Embeddings(
            vectors=tuple(vectors),
            prompt_tokens=sum(len(entry.row.token_ids) for entry in encoded),
            truncated=tuple(index for index, entry in enumerate(encoded) if entry.truncated),
        )

    def _check(self, job: EmbedJob) -> None:
        info = self.model.info
        if not job.inputs:
            raise InvalidRequest("'input' must not be empty", param="input")
        if job.dimensions is not None and not 1 <= job.dimensions <= info.dimensions:
            raise InvalidRequest(f"'dimensions' must be between 1 and {info.dimensions}", param="dimensions")
        check_norm(job.norm)
        for index, item in enumerate(job.inputs):
            if fault := self._fault(item):
                raise InvalidRequest(f"'input[{index}]': {fault}", param=f"input[{index}]")

    def _fault(self, item: EmbedInput) -> str | None:
        match item:
            case MediaPart():
                return f"the model {self.model.name} takes text only"
            case TextPart(text):
                return None if text else "must not be an empty string"
            case TokensPart(token_ids):
                if not token_ids:
                    return "must not be an empty list"
                size = self.model.info.vocab_size
                bad = next((token_id for token_id in token_ids if not 0 <= token_id < size), None)
                return None if bad is None else f"token id {bad} is out of vocabulary range (vocab_size {size})"

    def _encode(self, job: EmbedJob) -> list[EncodedRow]:
        texts = [self.model.format(item.text, job.instruction) for item in job.inputs if isinstance(item, TextPart)]
        tokenizer = self.model.tokenizer
        encoded = iter(tokenizer.texts(texts))
        rows = [tokenizer.ids(item.token_ids) if isinstance(item, TokensPart) else next(encoded) for item in job.inputs]
        for index, entry in enumerate(rows):
            if not entry.row.token_ids:
                raise InvalidRequest(f"'input[{index}]': the text has no tokens", param=f"input[{index}]")
        return rows

    def _finish(self, vectors: Sequence[Vector], job: EmbedJob) -> list[Vector]:
        norm = self.model.info.norm if job.norm is None else job.norm
        return [finish(vector, dimensions=job.dimensions, norm=norm) for vector in vectors]
