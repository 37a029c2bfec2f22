"""A long prompt arriving beside running streams: what it costs them, and what they cost it.

    python bench/fairness.py [--url http://127.0.0.1:8080] [--prompt-tokens 7600] [--streams 4]

Without ``--url`` a server of our own is started. Reported: the p99 gap between tokens of the streams, alone and while the
long prompt is read, and the prompt's time to the first token, alone and beside the streams.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from collections.abc import Sequence

from mlxcel.cli.bench.client import BenchClient, Sample
from mlxcel.cli.bench.local import LocalServer
from mlxcel.cli.bench.scenarios import Bench


async def measure(url: str, prompt_tokens: int, streams: int, new_tokens: int) -> dict[str, float]:
    """The figures of one run; times in milliseconds."""
    client = BenchClient(url, model="bench")
    bench = Bench(client)
    await bench.calibrate()
    alone = await client.complete(bench.prompt(prompt_tokens), new_tokens=1)
    calm = await asyncio.gather(*(client.complete(bench.prompt(64), new_tokens=new_tokens // 2) for _ in range(streams)))
    running = [asyncio.ensure_future(client.complete(bench.prompt(64), new_tokens=new_tokens)) for _ in range(streams)]
    await asyncio.sleep(1.0)
    beside = await client.complete(bench.prompt(prompt_tokens), new_tokens=1)
    samples = await asyncio.gather(*running)
    calm_ms = p99(gaps(calm)) * 1000
    disturbed_ms = p99(gaps(samples, beside.started_s, beside.ended_s)) * 1000
    return {
        "prompt_tokens": beside.prompt_tokens,
        "streams": streams,
        "ttft_alone_ms": round(alone.ttft_s * 1000, 1),
        "ttft_beside_ms": round(beside.ttft_s * 1000, 1),
        "ttft_ratio": round(beside.ttft_s / alone.ttft_s, 2),
        "gap_p99_alone_ms": round(calm_ms, 1),
        "gap_p99_beside_ms": round(disturbed_ms, 1),
        "gap_p99_ratio": round(disturbed_ms / calm_ms, 2),
    }


def gaps(samples: Sequence[Sample], start_s: float = 0.0, end_s: float = float("inf")) -> list[float]:
    """Gaps between pieces that ended within the window."""
    return [
        after - before
        for sample in samples
        for before, after in itertools.pairwise(sample.chunk_times_s)
        if start_s <= after <= end_s
    ]


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)] if ordered else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompt-tokens", type=int, default=7600)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=800)
    options = parser.parse_args()
    arguments = (options.prompt_tokens, options.streams, options.new_tokens)
    if options.url:
        figures = asyncio.run(measure(options.url, *arguments))
    else:
        with LocalServer(options.model, slots=options.streams + 1, threads=2) as url:
            figures = asyncio.run(measure(url, *arguments))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
