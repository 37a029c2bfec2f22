"""What is measured: fixed lengths, fixed concurrency, tokens as the server counts them."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxcel.cli.bench.client import BenchClient, Sample
from mlxcel.core.errors import StartupError

_TEXT = (
    "the of and to in is was for on that with as it by at from his her they be this have are not but had which you one"
    " all were when there can more if out so up said what its about into than them some could time these two may then do"
    " first any my now such like our over man me even most made after also did many before must through back years where"
)
_WORDS = tuple(_TEXT.split())


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """Reading prompts of about ``prompt_tokens``; the best of the repeats."""

    prompt_tokens: int
    tokens_per_s: float
    ttft_s: float


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """``streams`` generations at once. ``tokens_per_s`` is their total while all of them were decoding."""

    streams: int
    tokens_per_s: float
    inter_token_p50_s: float
    inter_token_p99_s: float
    ttft_p50_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one server."""

    server: str
    model: str
    prefill: tuple[PrefillResult, ...]
    decode: tuple[DecodeResult, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Bench:
    """Runs the scenarios against one server.

    Args:
        seed: of the prompts; equal seeds send equal prompts to every server.
        progress: called with a line before each scenario.
    """

    def __init__(self, client: BenchClient, *, seed: int = 1, progress: Callable[[str], None] | None = None) -> None:
        self._client = client
        self._random = random.Random(seed)
        self._progress = progress or (lambda line: None)
        self._tokens_per_word = 1.0

    async def calibrate(self) -> None:
        """Learn how many tokens a word takes, and warm the server up.

        Raises:
            StartupError: the server refuses, or does not report usage.
        """
        sample = await self._complete(400, 1)
        self._tokens_per_word = sample.prompt_tokens / 400

    async def prefill(self, prompt_tokens: int, repeats: int = 3) -> PrefillResult:
        """Time to the first token of an idle server."""
        self._progress(f"prefill of {prompt_tokens} tokens")
        samples = [await self._complete(self._words(prompt_tokens), 1) for _ in range(repeats)]
        best = max(samples, key=lambda sample: (sample.prompt_tokens - sample.cached_tokens) / sample.ttft_s)
        return PrefillResult(best.prompt_tokens, (best.prompt_tokens - best.cached_tokens) / best.ttft_s, best.ttft_s)

    async def decode(
        self, streams: int, *, prompt_tokens: int = 64, new_tokens: int = 128, repeats: int = 2
    ) -> DecodeResult:
        """Generation with ``streams`` requests at once."""
        self._progress(f"decode of {streams} streams")
        words = self._words(prompt_tokens)
        results = []
        for _ in range(repeats):
            samples = await asyncio.gather(*(self._complete(words, new_tokens) for _ in range(streams)))
            results.append(summarise(samples))
        return max(results, key=lambda result: result.tokens_per_s)

    def prompt(self, prompt_tokens: int) -> str:
        """A fresh prompt of about so many tokens; known after :meth:`calibrate`."""
        return self._text(self._words(prompt_tokens))

    def _words(self, tokens: int) -> int:
        return max(round(tokens / self._tokens_per_word), 1)

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    async def _complete(self, words: int, new_tokens: int) -> Sample:
        sample = await self._client.complete(self._text(words), new_tokens=new_tokens)
        if sample.error is not None:
            raise StartupError(f"the server refused a request with {sample.error}")
        if not sample.prompt_tokens:
            raise StartupError("the server reports no usage in its streams; it cannot be measured")
        return sample


def summarise(samples: Sequence[Sample]) -> DecodeResult:
    """Rates over the time in which every stream was decoding."""
    window_start_s = max(sample.chunk_times_s[0] for sample in samples)
    window_end_s = min(sample.chunk_times_s[-1] for sample in samples)
    tokens = 0.0
    gaps: list[float] = []
    for sample in samples:
        times = sample.chunk_times_s
        tokens_per_chunk = sample.completion_tokens / len(times)
        tokens += tokens_per_chunk * sum(window_start_s < moment <= window_end_s for moment in times)
        gaps += [after - before for before, after in itertools.pairwise(times)]
    gaps.sort()
    span_s = max(window_end_s - window_start_s, 1e-9)
    return DecodeResult(
        streams=len(samples),
        tokens_per_s=tokens / span_s,
        inter_token_p50_s=_quantile(gaps, 0.5),
        inter_token_p99_s=_quantile(gaps, 0.99),
        ttft_p50_s=statistics.median(sample.ttft_s for sample in samples),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
