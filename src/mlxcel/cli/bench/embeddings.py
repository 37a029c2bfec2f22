"""Embedding throughput: many texts in one request, and many clients with one text each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.cli.bench.client import BenchClient
from mlxcel.core.errors import StartupError

_WORDS = ("river", "mill", "stone", "wheel", "rain", "valley", "cart", "city", "capital", "weather", "child", "word")
_BULK_TEXTS = 256
_CLIENTS = (1, 8, 32)
_TEXTS_A_CLIENT = 8


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """``clients`` sending ``texts_per_request`` at a time; the best of the repeats."""

    clients: int
    texts_per_request: int
    texts_per_s: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class EmbeddingReport:
    """All results of one server."""

    server: str
    model: str
    embeddings: tuple[EmbeddingResult, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    def table(self) -> str:
        """The report for a terminal."""
        lines = [f"{self.model} at {self.server}", "", "clients  texts a request   texts/s    tok/s"]
        lines += [
            f"{row.clients:>7} {row.texts_per_request:>16} {row.texts_per_s:>9.1f} {row.tokens_per_s:>8.0f}"
            for row in self.embeddings
        ]
        return "\n".join(lines)


async def measure_embeddings(client: BenchClient, repeats: int) -> tuple[EmbeddingResult, ...]:
    """Run every scenario.

    Raises:
        StartupError: the server refused a request.
    """
    results = [await _best(client, clients=1, texts_per_request=_BULK_TEXTS, requests=1, repeats=repeats)]
    for clients in _CLIENTS:
        results.append(
            await _best(client, clients=clients, texts_per_request=1, requests=_TEXTS_A_CLIENT, repeats=repeats)
        )
    return tuple(results)


async def _best(
    client: BenchClient, *, clients: int, texts_per_request: int, requests: int, repeats: int
) -> EmbeddingResult:
    texts = _texts(clients * texts_per_request * requests)
    best_s, tokens = float("inf"), 0
    for _ in range(max(repeats, 1)):
        started_s = time.perf_counter()
        shares = [texts[index::clients] for index in range(clients)]
        tokens = sum(await asyncio.gather(*(_client(client, share, texts_per_request) for share in shares)))
        best_s = min(best_s, time.perf_counter() - started_s)
    return EmbeddingResult(clients, texts_per_request, len(texts) / best_s, tokens / best_s)


async def _client(client: BenchClient, texts: Sequence[str], texts_per_request: int) -> int:
    """Send the texts one request after the other; the tokens that the server counted."""
    tokens = 0
    for start in range(0, len(texts), texts_per_request):
        part = list(texts[start : start + texts_per_request])
        status, body = await client.post("/v1/embeddings", {"input": part, "encoding_format": "base64"})
        if status != 200:
            raise StartupError(f"an embedding request got {status}: {body[:200].decode('utf-8', 'replace')}")
        tokens += int(json.loads(body)["usage"]["prompt_tokens"])
    return tokens


def _texts(count: int) -> list[str]:
    """Texts of mixed length, mostly short, the same in every run."""
    rng = random.Random(3)
    return [" ".join(rng.choices(_WORDS, k=min(int(rng.lognormvariate(2.3, 0.9)) + 1, 150))) for _ in range(count)]
