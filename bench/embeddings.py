"""Embedding throughput over HTTP beside sentence-transformers in one run: ``python bench/embeddings.py MODEL_FOLDER``.

Needs sentence-transformers, which nothing else here does. Both sides take the same texts and the same threads; they run in
turns, and the best run of each counts. The vectors are compared too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import torch

from mlxcel.cli.bench.client import BenchClient
from mlxcel.cli.bench.local import LocalServer

WORDS = (
    "river mill stone wheel rain valley carts miller sacks Paris France capital weather children summer light wind "
    "函数 東京 駅 हिन्दी вода мельница السلام 모델 größer naïve def return"
)
BATCH_SIZES = (32, 64, 128, 256)
SINGLE_TEXTS = 96


def texts_of(count: int, seed: int = 3) -> list[str]:
    """Texts of mixed length and script: mostly short, some long."""
    rng, words = random.Random(seed), WORDS.split()
    return [" ".join(rng.choices(words, k=min(int(rng.lognormvariate(2.3, 0.9)) + 1, 150))) for _ in range(count)]


async def embed(client: httpx2.AsyncClient, texts: list[str]) -> np.ndarray[Any, Any]:
    answer = await client.post("/v1/embeddings", json={"input": texts})
    answer.raise_for_status()
    return np.array([entry["embedding"] for entry in answer.json()["data"]], dtype=np.float32)


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    start_s = time.perf_counter()
    await work()
    return time.perf_counter() - start_s


async def single_clients(client: BenchClient, texts: list[str], clients: int) -> None:
    """Each client sends its share of the texts, one a request, one after the other; it does as little else as it can."""

    async def one(share: list[str]) -> None:
        for text in share:
            status, _ = await client.post("/v1/embeddings", {"input": text, "encoding_format": "base64"})
            if status != 200:
                raise RuntimeError(f"the server answered {status}")

    await asyncio.gather(*(one(texts[index::clients]) for index in range(clients)))


async def measure(url: str, model: Any, repeats: int) -> dict[str, Any]:
    texts, singles = texts_of(256), texts_of(SINGLE_TEXTS, seed=4)
    async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
        ours = await embed(client, texts[:200])
        theirs = model.encode(texts[:200], normalize_embeddings=True)
        bulk, peer, many, one = [], dict.fromkeys(BATCH_SIZES, float("inf")), [], []
        for _ in range(repeats):
            bulk.append(await timed(lambda: embed(client, texts)))
            for size in BATCH_SIZES:
                start_s = time.perf_counter()
                model.encode(texts, batch_size=size)
                peer[size] = min(peer[size], time.perf_counter() - start_s)
            many.append(await timed(lambda: single_clients(BenchClient(url), singles, 32)))
            start_s = time.perf_counter()
            for text in singles:
                model.encode(text)
            one.append(time.perf_counter() - start_s)
    best = min(peer, key=lambda size: peer[size])
    return {
        "cosine_min": float((ours * theirs).sum(1).min()),
        "bulk_texts_per_s": 256 / min(bulk),
        "peer_batch_size": best,
        "peer_texts_per_s": 256 / peer[best],
        "bulk_ratio": peer[best] / min(bulk),
        "clients_32_texts_per_s": SINGLE_TEXTS / min(many),
        "peer_one_at_a_time_texts_per_s": SINGLE_TEXTS / min(one),
        "clients_32_ratio": min(one) / min(many),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="sentence-transformers folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(options.threads)
    model = SentenceTransformer(options.model, device="cpu")
    with LocalServer(options.model, slots=1, threads=options.threads) as url:
        report = asyncio.run(measure(url, model, options.repeats))
    git = ["git", "rev-parse", "--short", "HEAD"]
    report |= {
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "commit": subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip(),
    }
    text = json.dumps(report, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
